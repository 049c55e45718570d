"""Connections whose bytes a native process carries: `egpu-relay` (native/relay) does TLS and copies, and this module
decides which ends are connected. Its main.c describes the commands and reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from typing import Final, Literal

from egpu.adapters import native
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.security import Credentials
from egpu_base.errors import Refused, Unavailable
from egpu_base.system import proc

PROGRAM: Final = "egpu-relay"
START_SECONDS: Final = 10.0
_HOW_IT_WENT: Final = struct.Struct("<BH")
_ENDED: Final = 2
_Role = Literal["S", "C", "P", "U"]


class Relay:
    """One process, started on first use. Closing it closes all that it carries."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._starting = asyncio.Lock()
        self._control: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def secure(self, sock: socket.socket, *, server: bool) -> Connection:
        """Carry a TCP socket, which is taken. Its other side has proved to be `peer`, which is "" without TLS.

        Raises Refused when either side does not accept the other, Unavailable when the connection ended before, or
        without a relay, NativeMissing.
        """
        role: _Role = "P" if not self._credentials.tls else "S" if server else "C"
        return await self._begin(role, sock)

    async def local(self, sock: socket.socket) -> Connection:
        """Carry a unix socket, which is taken: once handed over, descriptors go with the bytes. Raises as `secure`."""
        return await self._begin("U", sock)

    async def close(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            control.close()
        if self._process is not None:
            await self._process.wait()

    async def _begin(self, role: _Role, far: socket.socket) -> Connection:
        ours, near = socket.socketpair()
        try:
            with contextlib.closing(far), contextlib.closing(near):
                await self._tell(role.encode(), [far.fileno(), near.fileno()])
            connection = await Connection.over(ours)
        except BaseException:
            ours.close()
            raise
        try:
            status, length = _HOW_IT_WENT.unpack(await connection.reader.readexactly(_HOW_IT_WENT.size))
            text = (await connection.reader.readexactly(length)).decode(errors="replace")
        except (asyncio.IncompleteReadError, OSError) as error:
            await connection.close()
            raise Unavailable(f"{PROGRAM} has ended") from error
        except BaseException:
            connection.writer.close()
            raise
        if status:
            await connection.close()
            raise Unavailable(text) if status == _ENDED else Refused(text)
        connection.peer = text
        return connection

    async def _tell(self, message: bytes, descriptors: list[int]) -> None:
        async with self._starting:
            if self._control is not None and self._process is not None and self._process.returncode is not None:
                self._control.close()
                self._control = None
            if self._control is None:
                self._control = await self._start()
            try:
                socket.send_fds(self._control, [message], descriptors)
            except OSError as error:
                raise Unavailable(f"{PROGRAM} does not accept a connection: {error}") from error

    async def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        arguments = [str(native.path(PROGRAM)), str(theirs.fileno())]
        files = self._credentials
        if files.tls:
            arguments += [library(), *map(str, (files.ca, files.certificate, files.key))]
        with contextlib.closing(theirs):
            self._process = await asyncio.create_subprocess_exec(
                *arguments, pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL
            )
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await asyncio.get_running_loop().sock_recv(ours, 1)
        except TimeoutError:
            ready = b""
        if not ready:
            ours.close()
            raise Unavailable(f"{PROGRAM} does not start; see its message on standard error")
        return ours


def library() -> str:
    """Return the OpenSSL that this Python uses, or its usual name where it is linked into Python."""
    assert ssl.OPENSSL_VERSION  # importing it is what loads the library
    for line in proc.read(os.getpid(), "maps").split(b"\n"):
        path = line.rpartition(b" ")[2]
        if b"/libssl" in path and b".so" in path:
            return os.fsdecode(path)
    return "libssl.so.3"
