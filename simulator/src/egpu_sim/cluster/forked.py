"""Processes of Python modules, forked by a fork server (`egpu_sim.cluster.fork_server`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from egpu_base.errors import Unavailable
from egpu_base.system.processes import Process

POLL_SECONDS = 0.01


class ForkedProcess:
    """A child of the fork server, with those methods of `asyncio.subprocess.Process` that we use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._process = Process.of(pid)
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        """Its exit code, or the negative number of the signal that ended it. None while it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Wait for its end. Return `returncode`."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Send it a signal. Raises ProcessLookupError if it has ended."""
        if self._ended.done():
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, number)

    def end(self, code: int) -> None:
        """Note its end."""
        self._ended.set_result(code)

    def kill_orphan(self) -> None:
        """Kill it and note its end, as its server has ended and tells of no end any more."""
        if self._process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                self.send_signal(signal.SIGKILL)
        self.end(-signal.SIGKILL)


class Server(Protocol):
    """The process of a fork server."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    async def wait(self) -> int:
        """Wait for its end. Return its exit code."""
        ...


async def launch(modules: Sequence[str], channel: socket.socket, log_file: Path) -> Server:
    """Start a fork server that imports the modules. It serves `channel`, and its errors go to the end of `log_file`."""
    with log_file.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "egpu_sim.cluster.fork_server", *modules,
            stdin=channel.fileno(), stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip


class ForkServer:
    """The client of one fork server at a time. If that one is killed, its children are, and the next start starts
    another."""

    def __init__(self, modules: Sequence[str], log_file: Path) -> None:
        self._modules = tuple(modules)
        self._log_file = log_file
        self._server: Server | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.Task[None] | None = None
        self._asked: deque[asyncio.Future[ForkedProcess]] = deque()
        self._running: dict[int, ForkedProcess] = {}

    @property
    def pid(self) -> int | None:
        """The server's process id, or None between two."""
        return None if self._server is None else self._server.pid

    async def start(self) -> None:
        """Start the server. It imports the modules meanwhile."""
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        with theirs:
            self._server = await launch(self._modules, theirs, self._log_file)
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._reader = asyncio.create_task(self._read(self._server, reader, self._writer), name="fork-server")

    async def stop(self) -> None:
        """End the server, and first its children: those whose start was cancelled are nobody else's."""
        if self._server is None or self._reader is None:
            return
        while (self._asked or self._running) and not self._reader.done():
            for process in self._running.values():
                with contextlib.suppress(ProcessLookupError):  # it has ended, and the server has yet to tell
                    process.send_signal(signal.SIGKILL)
            await asyncio.sleep(POLL_SECONDS)
        assert self._writer is not None
        self._writer.close()
        await self._reader

    async def spawn(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], log_file: Path) -> ForkedProcess:
        """Run the module `argv[0]` in a process of this name, with this environment. Its output goes to the end of
        `log_file`. Raises Unavailable."""
        if self._server is None:
            await self.start()
        assert self._writer is not None
        module, *arguments = argv
        asked = {"name": name, "module": module, "arguments": arguments, "env": dict(env), "log_file": str(log_file)}
        answer: asyncio.Future[ForkedProcess] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        self._writer.write(json.dumps(asked).encode() + b"\n")
        return await answer

    async def _read(self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read what the server tells until it ends."""
        while line := await _line(reader):
            told = json.loads(line)
            if "code" in told:
                self._running.pop(told["pid"]).end(told["code"])
            else:
                process = self._running[told["pid"]] = ForkedProcess(told["pid"])
                answer = self._asked.popleft()
                if not answer.done():
                    answer.set_result(process)
        self._server = None
        writer.close()
        await server.wait()
        self._fail_all()

    def _fail_all(self) -> None:
        for process in self._running.values():
            process.kill_orphan()
        self._running.clear()
        for answer in self._asked:
            if not answer.done():
                answer.set_exception(Unavailable(f"the fork server ended; its log is {self._log_file}"))
        self._asked.clear()


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line, or nothing at the end. A killed server may leave requests unread: the socket is reset."""
    try:
        return await reader.readline()
    except ConnectionResetError:
        return b""


@contextlib.asynccontextmanager
async def fork_server(modules: Sequence[str], log_file: Path) -> AsyncGenerator[ForkServer, None]:
    """Run a fork server that has imported `modules`, until the context is left."""
    server = ForkServer(modules, log_file)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
