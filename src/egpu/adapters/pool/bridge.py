"""A program's way to its lease: sockets beside the remote `libcuda.so.1`, connected to the lease's executors.

    DIRECTORY/
      libcuda.so.1                  the remote driver
      libnvidia-ml.so.1             the remote NVML, over the same session
      libcudart.so.12, .13          CUDA's runtime, over the remote driver
      libcublas.so.13, …            libraries whose calls run on the server's own
      libcupti.so.13                this one does not
      lease0.sock, lease1.sock, …   one per server of the lease, in the order of the ordinals

The program connects to lease0.sock at its first CUDA call, and to the next one after its welcome there
(`docs/internals/wire.md`). So the lease is taken at the first connection, and its other sockets are made then.

An executor on this machine also gets the program's descriptors, so the two share memory, and the relay carries little.
An executor elsewhere is reached through its server, over TLS. The relay copies the bytes, and says goodbye for a
program that died. This module only decides which ends are connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
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
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.relay import Relay
from egpu.adapters.pool.security import Credentials
from egpu.core.provisioners.preparation import REMOTE_LIBRARIES
from egpu_base.errors import ElasticGPUError, InvalidInput, NotFound, Refused, Unavailable
from egpu_base.http.strangers import ACCEPT_AGAIN_SECONDS

log = structlog.get_logger(__name__)

_NO_SESSION: Final = struct.Struct("<HHIQIIII")
GONE: Final = _NO_SESSION.pack(2, 0, 16, 0, 3, 1, 0, 0)
"""A WELCOME for an unknown session: its executor will not come back. The program prints a line."""
TOLD: Final = _NO_SESSION.pack(2, 0, 16, 0, 6, 1, 0, 0)
"""The same for a program whose user was told why."""
GONE_SECONDS: Final = 2.0
"""The time that a program may take to receive it."""
MAX_PROGRAMS: Final = 128
"""Programs of one socket that are served at once: an executor takes 64, and lets as many begin. Others wait in the
socket: a process with many bridges needs its descriptors for all of them."""
_MAX_SOCKET_PATH: Final = 107


@dataclass(frozen=True)
class Target:
    """A lease for its bridge: the location of its parts, and the token that opens them."""

    lease: str
    parts: tuple[messages.PartView, ...]
    token: str


Take = Callable[[], Awaitable[Target]]
Follow = Callable[[Target], Awaitable[bool]]


def fill(directory: Path) -> list[Path]:
    """Put the remote libraries into a new directory and return them, for a program to preload. Raises NativeMissing
    when they are not built."""
    for name, artefact in REMOTE_LIBRARIES.items():
        (directory / name).symlink_to(native.path(artefact))
    return [directory / name for name in REMOTE_LIBRARIES]


class Bridge:
    """The sockets of one lease. `take` returns the lease when a program first needs it, and later its latest token; an
    error of it closes the program's connection, after the answer `refusal`. If an executor is not where it was,
    `follow` waits for the lease's new place, and returns False if there is none."""

    def __init__(
        self,
        directory: Path,
        credentials: Credentials,
        take: Take,
        *,
        refusal: bytes = GONE,
        follow: Follow | None = None,
    ) -> None:
        self._follow = follow
        self._directory = directory
        self._credentials = credentials
        self._take = take
        self._refusal = refusal
        self._relay = Relay(credentials)
        self._servers: list[asyncio.Server] = []
        self._opening = asyncio.Lock()
        self._open: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen on lease0.sock. Raises InvalidInput for a directory whose name is too long for sockets."""
        await self._listen(0)

    async def close(self) -> None:
        """Close everything: programs lose their executors."""
        for server in self._servers:
            server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._relay.close()

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
        places = asyncio.Semaphore(MAX_PROGRAMS)
        try:
            while True:
                await places.acquire()
                try:
                    program, _ = await asyncio.get_running_loop().sock_accept(sock)
                except OSError as error:  # no descriptors left; there will be again
                    places.release()
                    log.warning("a program was not taken", part=part, reason=str(error))
                    await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                    continue
                task = asyncio.create_task(self._serve(program, part))
                self._open.add(task)
                task.add_done_callback(self._open.discard)
                task.add_done_callback(lambda _: places.release())
        finally:
            sock.close()

    async def _serve(self, program: socket.socket, part: int) -> None:
        with contextlib.closing(program):
            try:
                await self._connect(program, part)
            except (Unavailable, OSError) as error:
                if isinstance(error, ConnectionRefusedError):
                    await self._say_gone(program, part, error)
                else:
                    log.warning("cannot connect a program to its GPU", part=part, reason=str(error))
            except ElasticGPUError as error:
                await self._say_gone(program, part, error)

    async def _connect(self, program: socket.socket, part: int) -> None:
        """Connect a program to its executor, until either ends. Raises OSError, ElasticGPUError."""
        while True:
            target = await self._taken()
            if part >= len(target.parts):
                return
            try:
                connection = await self._executor(target, target.parts[part])
            except (Refused, NotFound, ConnectionRefusedError, FileNotFoundError):
                if self._follow is None or not await self._follow(target):
                    raise
                continue
            try:
                await connection.hand_over(program, farewell=True)
            finally:
                await connection.close()
            return

    async def _taken(self) -> Target:
        """Return the lease, after making the sockets of all its parts."""
        async with self._opening:
            target = await self._take()
            for part in range(1, len(target.parts)):
                if not (self._directory / f"lease{part}.sock").exists():
                    await self._listen(part)
            return target

    async def _executor(self, target: Target, part: messages.PartView) -> Connection:
        """Return a connection to the executor of a part. Raises OSError, ElasticGPUError."""
        if part.host == machine_id() and _connectable(part.socket):
            executor = socket.socket(socket.AF_UNIX)
            executor.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(executor, part.socket)
            except BaseException:
                executor.close()
                raise
            return await self._relay.local(executor)
        hello = messages.Hello(role="data", lease=target.lease, token=target.token, place=part.place)
        address = parse_address(part.address, "server")
        connection, _ = await dial(address, self._credentials, hello, expect=f"server/{part.server}", relay=self._relay)
        return connection

    async def _say_gone(self, program: socket.socket, part: int, error: Exception) -> None:
        """Tell the program not to retry. After a close without a message it would reconnect."""
        log.warning("a program's lease has ended", part=part, reason=str(error))
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(GONE_SECONDS):
                await loop.sock_sendall(program, self._refusal)
                # After a close with its Hello unread, the connection would be reset, and our message lost.
                while await loop.sock_recv(program, 1 << 16):
                    pass


def _connectable(path: str) -> bool:
    """Return whether this is a socket that we see and may connect to: a container sees none of its machine's."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode) and os.access(path, os.R_OK | os.W_OK)
    except OSError:
        return False
