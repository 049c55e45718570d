"""Who comes in: listens, finds out who the caller is, hands the connection on. Brokers and servers have one each."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from egpu.adapters import web
from egpu.adapters.pool import messages
from egpu.adapters.pool.connection import MAX_HELLO_BYTES, Connection
from egpu.adapters.pool.security import Credentials, caller
from egpu.errors import ElasticGPUError, Refused, Unavailable

log = structlog.get_logger(__name__)

HELLO_SECONDS: Final = 5.0
"""A caller that has not said who it is by then is closed."""

ComeIn = Callable[[Connection, messages.Hello], Awaitable[None]]


class Door:
    """`come_in` gets a caller that proved who it is (`connection.peer`), and keeps it until it returns. It sends the
    Welcome itself; what it raises is told to the caller."""

    def __init__(self, credentials: Credentials, listen: str, come_in: ComeIn, *, max_connections: int) -> None:
        self._credentials = credentials
        self._listen = web.Listen.parse(listen)
        self._come_in = come_in
        self._max_connections = max_connections
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._secret = ""
        self.address = self._listen

    @property
    def is_open(self) -> bool:
        """Whether callers can come in."""
        return self._server is not None

    async def open(self) -> None:
        """Listen. Raises InvalidInput."""
        self._credentials.check_address(self._listen)
        self._secret = self._credentials.secret()
        sock = web.open_socket(self._listen)
        self.address = web.bound(sock)
        self._server = await asyncio.start_server(
            self._accept, sock=sock, ssl=self._credentials.server_context(), limit=1 << 18
        )

    async def serve(self) -> None:
        """Until cancelled; then every connection is closed."""
        assert self._server is not None, "open() comes first"
        try:
            await asyncio.Event().wait()
        finally:
            self._server.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        connection = Connection(reader, writer)
        try:
            await self._let_in(connection)
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
            self._open.discard(task)
            with contextlib.suppress(asyncio.CancelledError):
                await connection.close()

    async def _let_in(self, connection: Connection) -> None:
        if len(self._open) > self._max_connections:
            raise Unavailable(f"{self._max_connections} connections are open, the most that are taken")
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await connection.expect(messages.Hello, limit_bytes=MAX_HELLO_BYTES)
        except TimeoutError as error:
            raise Refused(f"no greeting within {HELLO_SECONDS:g} s") from error
        if hello.version != messages.VERSION:
            raise Refused(f"version {hello.version} of the pool's protocol; this one speaks {messages.VERSION}")
        ssl_object = connection.writer.get_extra_info("ssl_object")
        certificate: dict[str, Any] | None = None if ssl_object is None else (ssl_object.getpeercert() or {})
        connection.peer = caller(certificate, hello.secret, self._secret)
        await self._come_in(connection, hello)


def _first(group: BaseExceptionGroup[ElasticGPUError]) -> ElasticGPUError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ElasticGPUError)
    return error
