"""Connections whose bytes a native process carries: `egpu-relay` (native/relay) does TLS and copies; who may talk to
whom is decided here. What it is told and says is described in its main.c.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from pathlib import Path
from typing import Final, Literal

from egpu.adapters import native
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.security import Credentials
from egpu.errors import Refused, Unavailable

PROGRAM: Final = "egpu-relay"
START_SECONDS: Final = 10.0
_HOW_IT_WENT: Final = struct.Struct("<BH")
_ENDED: Final = 2
_Role = Literal["S", "C", "P", "U"]


class Relay:
    """One process, started when it is first needed. Closing it closes all that it carries."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._starting = asyncio.Lock()
        self._control: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def secure(self, sock: socket.socket, *, server: bool) -> Connection:
        """Over a TCP socket, which is taken: its other side has proved to be `peer`, which is "" without TLS.

        Raises Refused when either side does not accept the other, Unavailable when the connection ended before that was
        known or there is no relay, NativeMissing.
        """
        role: _Role = "P" if not self._credentials.tls else "S" if server else "C"
        return await self._begin(role, sock)

    async def local(self, sock: socket.socket) -> Connection:
        """Over a unix socket, which is taken: once handed over, descriptors go with the bytes. Raises as `secure`."""
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
                raise Unavailable(f"{PROGRAM} does not take a connection: {error}") from error

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
            raise Unavailable(f"{PROGRAM} does not start; it says why on standard error")
        return ours


def library() -> str:
    """The OpenSSL that this Python uses, or its usual name where that is part of Python itself."""
    assert ssl.OPENSSL_VERSION  # importing it is what loads the library
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.rpartition(" ")[2]
            if "/libssl" in path and ".so" in path:
                return path
    return "libssl.so.3"
