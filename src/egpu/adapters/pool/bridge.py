"""How a program reaches its lease: sockets beside the remote `libcuda.so.1`, joined to the lease's executors.

    DIRECTORY/
      libcuda.so.1                  the remote driver
      lease0.sock, lease1.sock, …   one per server of the lease, in the order of the ordinals

The program connects to lease0.sock at its first CUDA call and looks for the next one when that has been welcomed
(`docs/wire.md`), so a lease can be taken when somebody first connects, and its other sockets be made then.

An executor on this machine is joined with descriptors and all, so the two share memory and the bridge only carries what
little is left; one elsewhere through its server's door, over TLS.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import select
import socket
import stat
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from egpu.adapters import native
from egpu.adapters.pool import messages
from egpu.adapters.pool.client import dial, machine_id, parse_address
from egpu.adapters.pool.connection import Connection, relay
from egpu.adapters.pool.security import Credentials
from egpu.errors import ElasticGPUError, InvalidInput

log = structlog.get_logger(__name__)

LIBRARIES: Final = {"libcuda.so.1": "remote/libcuda.so.1"}
"""What a program without a GPU of its own loads, and the artefact it is. There is no remote NVML: `docs/pool.md`."""
GOODBYE: Final = struct.pack("<HHIQ", 5, 0, 0, 0)
"""The frame that ends a session at once: what a client that was killed could not say."""
DEATH_SECONDS: Final = 0.5
"""A killed process closes its sockets a moment before it is dead."""
MAX_DESCRIPTORS: Final = 16
_BUFFER: Final = 256 * 1024
_MAX_SOCKET_PATH: Final = 107


@dataclass(frozen=True)
class Target:
    """A lease as its bridge needs it: where its parts are, and the token that opens them."""

    lease: str
    parts: tuple[messages.PartView, ...]
    token: str


Take = Callable[[], Awaitable[Target]]


def fill(directory: Path) -> list[Path]:
    """Put the remote libraries into a new directory. Raises NativeMissing when they were not built."""
    libraries: list[Path] = []
    for name, artefact in LIBRARIES.items():
        link = directory / name
        link.symlink_to(native.path(artefact))
        libraries.append(link)
    return libraries


class Bridge:
    """Serves the sockets of one lease. `take` gives the lease when a program first needs it, and its latest token each
    time after; what it raises closes the program's connection."""

    def __init__(self, directory: Path, credentials: Credentials, take: Take) -> None:
        self._directory = directory
        self._credentials = credentials
        self._take = take
        self._servers: list[asyncio.Server] = []
        self._opening = asyncio.Lock()
        self._open: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen on lease0.sock. Raises InvalidInput for a directory whose name is too long for sockets."""
        await self._listen(0)

    async def close(self) -> None:
        """Close everything: programs see their executors go."""
        for server in self._servers:
            server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _listen(self, part: int) -> None:
        path = self._directory / f"lease{part}.sock"
        if len(str(path)) > _MAX_SOCKET_PATH:
            raise InvalidInput("directory", f"{path} is too long for a unix socket")
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(path))
        path.chmod(0o600)
        sock.listen(64)
        sock.setblocking(False)
        accepting = asyncio.create_task(self._accept(sock, part))
        self._open.add(accepting)
        accepting.add_done_callback(self._open.discard)

    async def _accept(self, sock: socket.socket, part: int) -> None:
        try:
            while True:
                program, _ = await asyncio.get_running_loop().sock_accept(sock)
                task = asyncio.create_task(self._join(program, part))
                self._open.add(task)
                task.add_done_callback(self._open.discard)
        finally:
            sock.close()

    async def _join(self, program: socket.socket, part: int) -> None:
        with contextlib.closing(program):
            try:
                target = await self._taken()
                if part < len(target.parts):
                    await self._carry(program, target, target.parts[part])
            except (ElasticGPUError, OSError) as error:
                log.warning("a program cannot reach its GPU", part=part, reason=str(error))

    async def _taken(self) -> Target:
        """The lease; the sockets of all its parts are there when this returns."""
        async with self._opening:
            target = await self._take()
            for part in range(1, len(target.parts)):
                if not (self._directory / f"lease{part}.sock").exists():
                    await self._listen(part)
            return target

    async def _carry(self, program: socket.socket, target: Target, part: messages.PartView) -> None:
        if part.host == machine_id() and _connectable(part.socket):
            await _join_here(program, part.socket)
            return
        hello = messages.Hello(role="data", lease=target.lease, token=target.token, secret=self._credentials.secret())
        address = parse_address(part.address, "server")
        executor, _ = await dial(address, self._credentials, hello, expect=f"server/{part.server}")
        watched = Watched.of(program)
        reader, writer = await asyncio.open_unix_connection(sock=program, limit=1 << 18)
        copying = asyncio.create_task(relay(Connection(reader, writer), executor, last_words=watched.last_words))
        with contextlib.closing(watched):
            await copying


def _connectable(path: str) -> bool:
    """Whether this is a socket that we see and may connect to: a container sees none of its machine's."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode) and os.access(path, os.R_OK | os.W_OK)
    except OSError:
        return False


class Watched:
    """The process at the other end of a local socket: did it die, or only its connection?"""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd

    @classmethod
    def of(cls, sock: socket.socket) -> Watched:
        pid, _uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        try:
            return cls(os.pidfd_open(pid))
        except (OSError, OverflowError):
            return cls(-1)

    def died(self) -> bool:
        """Whether it is dead, or within a moment. Blocks for that moment."""
        return self._pidfd < 0 or bool(select.select([self._pidfd], [], [], DEATH_SECONDS)[0])

    async def last_words(self) -> bytes:
        """What a dead program would have said."""
        return GOODBYE if await asyncio.to_thread(self.died) else b""

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


async def _join_here(program: socket.socket, path: str) -> None:
    """Join to an executor of this machine, descriptors included."""
    executor = socket.socket(socket.AF_UNIX)
    watched = Watched.of(program)
    with contextlib.closing(executor), contextlib.closing(watched):
        await asyncio.to_thread(executor.connect, path)
        program.setblocking(True)
        both = [
            asyncio.to_thread(_copy_with_descriptors, program, executor),
            asyncio.to_thread(_copy_with_descriptors, executor, program),
        ]
        outward, inward = (asyncio.ensure_future(one) for one in both)
        try:
            await asyncio.wait([outward, inward], return_when=asyncio.FIRST_COMPLETED)
            if outward.done():
                words = await watched.last_words()
                with contextlib.suppress(OSError):
                    executor.sendall(words)
        finally:
            for sock in (program, executor):  # wakes the threads
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            await asyncio.gather(outward, inward, return_exceptions=True)


def _copy_with_descriptors(source: socket.socket, target: socket.socket) -> None:
    """Until the source ends."""
    with contextlib.suppress(OSError):
        while True:
            data, descriptors, _flags, _address = socket.recv_fds(source, _BUFFER, MAX_DESCRIPTORS)
            if not data:
                return
            try:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
                sent = target.sendmsg([data], rights)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            target.sendall(data[sent:])
