"""Accepts connections, finds out who each caller is, and hands the connection on. Brokers and servers have one each."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from egpu.adapters import web
from egpu.adapters.pool import messages
from egpu.adapters.pool.connection import MAX_HELLO_BYTES, Connection
from egpu.adapters.pool.relay import Relay
from egpu.adapters.pool.security import Credentials, caller, common_name
from egpu.errors import ElasticGPUError, Refused, Unavailable

log = structlog.get_logger(__name__)

HELLO_SECONDS: Final = 5.0
"""A caller that has not said who it is by then is closed."""
HANDSHAKES: Final = 64
"""Connections beyond the most that are taken, so that those get an answer; what is beyond these is closed at once."""

ACCEPT_AGAIN_SECONDS: Final = 0.1

ComeIn = Callable[[Connection, messages.Hello], Awaitable[None]]


class Listener:
    """`come_in` gets a caller that proved who it is (`connection.peer`), and keeps it until it returns. It sends the
    Welcome itself; what it raises is told to the caller.

    With `relayed` the bytes are carried by the relay, and `come_in` may hand the connection over.
    """

    def __init__(
        self, credentials: Credentials, listen: str, come_in: ComeIn, *, max_connections: int, relayed: bool = False
    ) -> None:
        self._credentials = credentials
        self._listen = web.Listen.parse(listen)
        self._come_in = come_in
        self._max_connections = max_connections
        self._open: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server | asyncio.Task[None] | None = None
        self._relay = Relay(credentials) if relayed else None
        self._secret = ""
        self.address = self._listen

    @property
    def is_open(self) -> bool:
        """Whether callers can come in."""
        return self._listening is not None

    async def open(self) -> None:
        """Listen. Raises InvalidInput."""
        self._credentials.check_address(self._listen)
        self._secret = self._credentials.secret()
        sock = web.open_socket(self._listen)
        self.address = web.bound(sock)
        context = self._credentials.server_context()  # also where it is the relay's: bad files are told now
        if self._relay is not None:
            self._listening = asyncio.create_task(self._take_sockets(sock))
            return
        self._listening = await asyncio.start_server(self._accept, sock=sock, ssl=context, limit=1 << 18)

    async def serve(self) -> None:
        """Until cancelled; then every connection is closed."""
        assert self._listening is not None, "open() comes first"
        try:
            await asyncio.Event().wait()
        finally:
            if isinstance(self._listening, asyncio.Task):
                self._listening.cancel()
            else:
                self._listening.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
            if self._relay is not None:
                await self._relay.close()

    async def _take_sockets(self, listener: socket.socket) -> None:
        with contextlib.closing(listener):
            while True:
                try:
                    sock, _ = await asyncio.get_running_loop().sock_accept(listener)
                except OSError as error:  # no descriptors left, or the caller has gone already
                    log.warning("a caller was not taken", reason=str(error))
                    await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                    continue
                task = asyncio.create_task(self._accept_relayed(sock))
                self._open.add(task)
                task.add_done_callback(self._open.discard)

    async def _accept_relayed(self, sock: socket.socket) -> None:
        assert self._relay is not None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._open) > self._max_connections + HANDSHAKES:
            sock.close()
            return
        try:
            connection = await self._relay.secure(sock, server=True)
        except ElasticGPUError as error:
            log.info("caller turned away", reason=str(error))
            return
        await self._keep(connection, connection.peer if self._credentials.tls else None)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            ssl_object = writer.get_extra_info("ssl_object")
            name = None if ssl_object is None else common_name(ssl_object.getpeercert() or {})
            await self._keep(Connection(reader, writer), name)
        finally:
            self._open.discard(task)

    async def _keep(self, connection: Connection, name: str | None) -> None:
        """Until the caller has gone. `name` is that of its certificate, None without TLS."""
        try:
            await self._let_in(connection, name)
        except* ElasticGPUError as group:
            error = _first(group)
            if not isinstance(error, Unavailable):
                log.info("caller turned away", peer=connection.peer, reason=str(error))
            with contextlib.suppress(ElasticGPUError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await connection.send(messages.Rejected(reason=str(error), retryable=error.retryable))
        except* (ConnectionError, ssl.SSLError, TimeoutError) as group:
            log.debug("caller lost", reason=str(group.exceptions[0]))
        except* asyncio.CancelledError:
            pass
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await connection.close()

    async def _let_in(self, connection: Connection, name: str | None) -> None:
        if len(self._open) > self._max_connections:
            raise Unavailable(f"{self._max_connections} connections are open, the most that are taken")
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await connection.expect(messages.Hello, limit_bytes=MAX_HELLO_BYTES)
        except TimeoutError as error:
            raise Refused(f"no greeting within {HELLO_SECONDS:g} s") from error
        if hello.version != messages.VERSION:
            raise Refused(f"version {hello.version} of the pool's protocol; this one speaks {messages.VERSION}")
        connection.peer = caller(name, hello.secret, self._secret)
        await self._come_in(connection, hello)


def _first(group: BaseExceptionGroup[ElasticGPUError]) -> ElasticGPUError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ElasticGPUError)
    return error
