"""HTTP/1.1 to one server, for httpx2: a parser in C, one write per request, connections kept and used again.

Every pod needs a binding, and before it a question about the election, so the cost of one request counts. The parser
and locks in Python of httpx2's own transport cost several times as much.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NamedTuple

import httptools
import httpx2

MAX_BUFFERED_BYTES: Final = 1024 * 1024
"""The buffer for a body that is read more slowly than it arrives; beyond it, the server has to wait."""
MAX_HEAD_BYTES: Final = 256 * 1024
"""The size limit of status line and headers of one answer."""


class Answer(NamedTuple):
    """A whole answer: its HTTP status and its body."""

    status: int
    content: bytes


class Transport(httpx2.AsyncBaseTransport):
    """Connections to one server, made when needed. An idle one is not used after `keepalive_seconds`. `server_name` is
    the name in its certificate, if that is not the host of the URL."""

    def __init__(
        self,
        tls: ssl.SSLContext | None,
        *,
        at_most: int,
        keepalive_seconds: float,
        server_name: str | None = None,
    ) -> None:
        self._tls = tls
        self._server_name = server_name
        self._keepalive_seconds = keepalive_seconds
        self._places = asyncio.Semaphore(at_most)
        self._idle: list[_Connection] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. Raises the errors of httpx2's own transport: only ConnectError, ConnectTimeout and
        PoolTimeout mean that nothing can have been sent."""
        timeouts: dict[str, float | None] = request.extensions.get("timeout", {})
        lines = [b"%b %b HTTP/1.1\r\n" % (request.method.encode(), request.url.raw_path)]
        lines += [b"%b: %b\r\n" % pair for pair in request.headers.raw]
        sent = b"".join((*lines, b"\r\n", await request.aread()))
        connection, status = await self._send(sent, request.url, timeouts)
        return httpx2.Response(status, headers=connection.headers, stream=_Body(self, connection, timeouts.get("read")))

    async def exchange(self, sent: bytes, server: httpx2.URL, limits: httpx2.Timeout) -> Answer:
        """Send a whole request as it is, and read the whole answer. Raises as `handle_async_request`."""
        connection, status = await self._send(sent, server, limits.as_dict())
        parts: list[bytes] = []
        try:
            while part := await connection.chunk(limits.read):
                parts.append(part)
        finally:
            self.done(connection)
        return Answer(status, b"".join(parts))

    async def _send(
        self, sent: bytes, server: httpx2.URL, timeouts: Mapping[str, float | None]
    ) -> tuple["_Connection", int]:
        """Return the connection of the request, to be given to `done` later, and the status of the answer."""
        if self._places.locked():
            try:
                async with asyncio.timeout(timeouts.get("pool")):
                    await self._places.acquire()
            except TimeoutError as error:
                raise httpx2.PoolTimeout("too many requests at once") from error
        else:
            await self._places.acquire()
        try:
            connection = self._kept() or await self._connect(server, timeouts.get("connect"))
            connection.send(sent)
            return connection, await connection.status(timeouts.get("read"))
        except BaseException:
            self._places.release()
            raise

    def done(self, connection: "_Connection") -> None:
        """Release a connection: the answer was read, or its rest is not needed."""
        self._places.release()
        if connection.reusable:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.abort()

    async def aclose(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    def _kept(self) -> "_Connection | None":
        """Return the connection that was used last, of those that may be used again."""
        oldest = time.monotonic() - self._keepalive_seconds
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and connection.idle_since >= oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self, url: httpx2.URL, within_seconds: float | None) -> "_Connection":
        port = url.port or (443 if url.scheme == "https" else 80)
        tls = self._tls if url.scheme == "https" else None
        name = (self._server_name or url.host) if tls else None
        try:
            async with asyncio.timeout(within_seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    _Connection, url.host, port, ssl=tls, server_hostname=name
                )
        except TimeoutError as error:
            raise httpx2.ConnectTimeout(f"no connection within {within_seconds} s") from error
        except OSError as error:  # TLS errors too
            raise httpx2.ConnectError(str(error)) from error
        return connection


class _Connection(asyncio.Protocol):
    """A connection with one exchange at a time."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self._chunks: deque[bytes] = deque()
        self._buffered = self._head_bytes = 0
        self._has_head = self._whole = self._until_close = self._kept_alive = False
        self._error: httpx2.TransportError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def reusable(self) -> bool:
        """Return whether another request may be sent: the last answer is whole, and neither side closed."""
        return (
            self._whole
            and not self._chunks
            and self._error is None
            and self._kept_alive
            and self._transport is not None
            and not self._transport.is_closing()
        )

    def send(self, sent: bytes) -> None:
        """Send a whole request."""
        self._reset()
        assert self._transport is not None
        self._transport.write(sent)

    async def status(self, within_seconds: float | None) -> int:
        """Return the answer's status, after its `headers`. Raises ReadError, ReadTimeout, RemoteProtocolError."""
        try:
            while not self._has_head:
                await self._wait(within_seconds)
        except BaseException:
            self.abort()
            raise
        return self._parser.get_status_code()

    async def chunk(self, within_seconds: float | None) -> bytes:
        """Return the next part of the body, empty at its end. Raises as `status`."""
        while not self._chunks and not self._whole:
            await self._wait(within_seconds)
        if not self._chunks:
            return b""
        found = b"".join(self._chunks)
        self._chunks.clear()
        if self._buffered > MAX_BUFFERED_BYTES and self._transport is not None:
            self._transport.resume_reading()
        self._buffered = 0
        return found

    async def _wait(self, within_seconds: float | None) -> None:
        """Wait for the next input. asyncio's event and timeout would cost as much as all else here."""
        if self._error is not None:
            raise self._error
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = None if within_seconds is None else loop.call_later(within_seconds, _give_up, waiter)
        try:
            await waiter
        except TimeoutError as error:
            raise httpx2.ReadTimeout(f"no data within {within_seconds} s") from error
        finally:
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        """Wake the waiter after input."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- what asyncio calls ---

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._head_bytes += 0 if self._has_head else len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(httpx2.RemoteProtocolError(str(error)))
        if not self._has_head and self._head_bytes > MAX_HEAD_BYTES:
            self._fail(httpx2.RemoteProtocolError(f"headers larger than {MAX_HEAD_BYTES} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._until_close and exc is None:
            self._whole = True
        if not self._whole:
            self._fail(httpx2.ReadError(str(exc) if exc else "the server closed the connection"))
        self._wake()
        self._transport = None

    def _fail(self, error: httpx2.TransportError) -> None:
        self._error = self._error or error
        self._wake()
        self.abort()

    # --- what the parser calls ---

    def on_message_begin(self) -> None:
        if self._whole:
            self._fail(httpx2.RemoteProtocolError("an answer without a request"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._has_head = self._parser.get_status_code() >= 200  # 1xx is no final answer
        if not self._has_head:
            self.headers = []
        self._kept_alive = self._parser.should_keep_alive()
        named = {name.lower() for name, _ in self.headers}
        self._until_close = self._has_head and not named & {b"content-length", b"transfer-encoding"}
        self._wake()

    def on_body(self, body: bytes) -> None:
        if self._whole:
            return
        self._chunks.append(body)
        before, self._buffered = self._buffered, self._buffered + len(body)
        if before <= MAX_BUFFERED_BYTES < self._buffered and self._transport is not None:
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        self._whole = self._has_head
        self._wake()


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


class _Body(httpx2.AsyncByteStream):
    def __init__(self, transport: Transport, connection: _Connection, within_seconds: float | None) -> None:
        self._transport = transport
        self._connection: _Connection | None = connection
        self._within_seconds = within_seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._connection is not None and (found := await self._connection.chunk(self._within_seconds)):
            yield found

    async def aclose(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._transport.done(connection)
