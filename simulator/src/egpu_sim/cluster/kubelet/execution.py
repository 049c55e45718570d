"""A command in a running container, for `kubectl exec`: beside its process, in its mounts and environment."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import struct
import termios
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpu_sim import native
from egpu_sim.cluster.kubelet.environment import TERMINAL
from egpu_sim.cluster.streams import (
    CHUNK_BYTES,
    CLOSE,
    ERROR,
    RESIZE,
    STDERR,
    STDIN,
    STDOUT,
    Connection,
    Question,
    window_size,
)


@dataclass(frozen=True)
class Place:
    """The place of a command: beside process `pid`, and only `until` its container has ended."""

    pid: int
    working_dir: str
    until: Awaitable[object]


async def execute(connection: Connection, question: Question, place: Place) -> None:
    """Run a command to its end, with its streams on the connection's channels, and send its status. It ends when the
    container ends or the caller goes; egpu-enter then ends all its children."""
    async with _started(question, place) as session:
        guards = [
            asyncio.ensure_future(place.until),
            asyncio.create_task(session.take_input(connection)),
            asyncio.create_task(connection.gone()),
        ]
        for guard in guards:
            guard.add_done_callback(lambda _: session.end())
        try:
            await session.pass_output(connection)
            code = await session.process.wait()
            await connection.send(ERROR, json.dumps(_status(code)).encode())
        finally:
            for guard in guards:
                guard.cancel()
            await asyncio.gather(*guards, return_exceptions=True)


@dataclass
class _Session:
    process: asyncio.subprocess.Process
    terminal: int | None
    """This side's end of it."""

    def end(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()

    async def take_input(self, connection: Connection) -> None:
        while (frame := await connection.receive()) is not None:
            channel, payload = frame
            if channel == STDIN:
                await self._write(payload)
            elif channel == CLOSE and payload == bytes([STDIN]) and self.process.stdin is not None:
                self.process.stdin.close()
            elif channel == RESIZE and self.terminal is not None:
                _resize(self.terminal, payload)

    async def _write(self, payload: bytes) -> None:
        if self.terminal is not None:
            while payload:
                await _ready(self.terminal, writing=True)
                payload = payload[os.write(self.terminal, payload) :]
        elif self.process.stdin is not None:
            with contextlib.suppress(ConnectionError):  # a command need not read its input
                self.process.stdin.write(payload)
                await self.process.stdin.drain()

    async def pass_output(self, connection: Connection) -> None:
        """Pass on output until no process has the streams any more."""
        if self.terminal is not None:
            while chunk := await _read(self.terminal):
                await connection.send(STDOUT, chunk)
            return
        streams = ((STDOUT, self.process.stdout), (STDERR, self.process.stderr))
        await asyncio.gather(*(_copy(reader, connection, channel) for channel, reader in streams if reader is not None))


async def _copy(reader: asyncio.StreamReader, connection: Connection, channel: int) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        await connection.send(channel, chunk)


@contextlib.asynccontextmanager
async def _started(question: Question, place: Place) -> AsyncGenerator[_Session, None]:
    command = [str(native.path("egpu-enter")), "--join", str(place.pid), "--chdir", place.working_dir]
    environment = await asyncio.to_thread(_environment, place.pid)
    ours: int | None = None
    streams: dict[str, Any] = {
        name: asyncio.subprocess.PIPE if channel in question.streams else asyncio.subprocess.DEVNULL
        for name, channel in (("stdin", STDIN), ("stdout", STDOUT), ("stderr", STDERR))
    }
    with contextlib.ExitStack() as stack:
        if question.terminal:
            ours, theirs = os.openpty()
            stack.callback(os.close, ours)
            os.set_blocking(ours, False)
            command.append("--terminal")
            environment.setdefault("TERM", TERMINAL)
            streams = dict.fromkeys(streams, theirs)
        try:
            process = await asyncio.create_subprocess_exec(
                *command, "--", *question.command, env=environment, start_new_session=True, **streams
            )
        finally:
            if question.terminal:
                os.close(streams["stdin"])
        session = _Session(process, ours)
        try:
            yield session
        finally:
            session.end()
            await process.wait()


def _environment(pid: int) -> dict[str, str]:
    """Return the environment that the container's process was started with."""
    pairs = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes()).split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _status(code: int) -> dict[str, Any]:
    """Return a command's status as the remote command protocol encodes it (from its version 4 on)."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    code = code if code > 0 else 128 - code
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def _resize(terminal: int, payload: bytes) -> None:
    if (size := window_size(payload)) is not None:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))


async def _read(terminal: int) -> bytes:
    """Return written data; b"" when no process has the stream any more."""
    await _ready(terminal, writing=False)
    try:
        return os.read(terminal, CHUNK_BYTES)
    except OSError:  # EIO: the last one has closed it
        return b""


async def _ready(descriptor: int, *, writing: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    watch, forget = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    watch(descriptor, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        forget(descriptor)
