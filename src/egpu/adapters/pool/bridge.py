"""How a program reaches its lease: sockets beside the remote `libcuda.so.1`, connected to the lease's executors.

    DIRECTORY/
      libcuda.so.1                  the remote driver
      libnvidia-ml.so.1             the remote NVML, over the same session
      libcudart.so.12, .13          CUDA's runtime, over the remote driver
      libcublas.so.13, …            libraries that are carried to the server's own
      libcupti.so.13                one that is not
      lease0.sock, lease1.sock, …   one per server of the lease, in the order of the ordinals

The program connects to lease0.sock at its first CUDA call and looks for the next one when that has been welcomed
(`docs/wire.md`), so a lease can be taken when somebody first connects, and its other sockets be made then.

An executor on this machine also gets the descriptors that the program sends, so the two share memory and little goes
through the relay; one elsewhere is reached through its server, over TLS. The relay copies the bytes, and says goodbye
for a program that died. Here is only decided who is connected to whom.
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
from egpu.adapters.pool.relay import Relay
from egpu.adapters.pool.security import Credentials
from egpu.core.provisioners.preparation import REMOTE_LIBRARIES
from egpu.errors import ElasticGPUError, InvalidInput, Unavailable

log = structlog.get_logger(__name__)

GONE: Final = struct.pack("<HHIQIIII", 2, 0, 16, 0, 3, 1, 0, 0)
"""WELCOME that says that the session is not known: its executor will not come back."""
GONE_SECONDS: Final = 2.0
"""How long a program may take to hear it."""
_MAX_SOCKET_PATH: Final = 107


@dataclass(frozen=True)
class Target:
    """A lease as its bridge needs it: where its parts are, and the token that opens them."""

    lease: str
    parts: tuple[messages.PartView, ...]
    token: str


Take = Callable[[], Awaitable[Target]]


def fill(directory: Path) -> list[Path]:
    """Put the remote libraries into a new directory and return them, for a program to load first. Raises NativeMissing
    when they were not built."""
    for name, artefact in REMOTE_LIBRARIES.items():
        (directory / name).symlink_to(native.path(artefact))
    return [directory / name for name in REMOTE_LIBRARIES]


class Bridge:
    """Serves the sockets of one lease. `take` gives the lease when a program first needs it, and its latest token each
    time after; what it raises closes the program's connection."""

    def __init__(self, directory: Path, credentials: Credentials, take: Take) -> None:
        self._directory = directory
        self._credentials = credentials
        self._take = take
        self._relay = Relay(credentials)
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
        try:
            while True:
                program, _ = await asyncio.get_running_loop().sock_accept(sock)
                task = asyncio.create_task(self._serve(program, part))
                self._open.add(task)
                task.add_done_callback(self._open.discard)
        finally:
            sock.close()

    async def _serve(self, program: socket.socket, part: int) -> None:
        with contextlib.closing(program):
            try:
                target = await self._taken()
                if part < len(target.parts):
                    await self._carry(program, target, target.parts[part])
            except (Unavailable, OSError) as error:
                if isinstance(error, ConnectionRefusedError):
                    await _say_gone(program, part, error)
                else:
                    log.warning("a program cannot reach its GPU", part=part, reason=str(error))
            except ElasticGPUError as error:
                await _say_gone(program, part, error)

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
            executor = socket.socket(socket.AF_UNIX)
            executor.setblocking(False)
            await asyncio.get_running_loop().sock_connect(executor, part.socket)
            connection = await self._relay.local(executor)
        else:
            hello = messages.Hello(role="data", lease=target.lease, token=target.token)
            address = parse_address(part.address, "server")
            connection, _ = await dial(
                address, self._credentials, hello, expect=f"server/{part.server}", relay=self._relay
            )
        try:
            await connection.hand_over(program, farewell=True)
        finally:
            await connection.close()


async def _say_gone(program: socket.socket, part: int, error: Exception) -> None:
    """That it need not try again. A connection that is closed without a word is one to be made anew."""
    log.warning("a program's GPU is gone", part=part, reason=str(error))
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(GONE_SECONDS):
            await loop.sock_sendall(program, GONE)
            # Closed with its greeting unread, the connection would be reset, and our word be lost with it.
            while await loop.sock_recv(program, 1 << 16):
                pass


def _connectable(path: str) -> bool:
    """Whether this is a socket that we see and may connect to: a container sees none of its machine's."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode) and os.access(path, os.R_OK | os.W_OK)
    except OSError:
        return False
