"""Accept connections, identify each caller, and hand the connection on. Brokers and servers have one each."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from egpu.adapters.pool import messages, proof
from egpu.adapters.pool.connection import CLOSE_SECONDS, MAX_HELLO_BYTES, STREAM_BYTES, Connection
from egpu.adapters.pool.relay import Relay
from egpu.adapters.pool.security import LOCAL_PEER, Credentials, certified, common_name
from egpu_base.errors import ElasticGPUError, Refused, Unavailable
from egpu_base.http import listening
from egpu_base.http.strangers import MAX_STRANGERS, Strangers, accept, places_for

log = structlog.get_logger(__name__)

HELLO_SECONDS: Final = 10.0
"""The time in which a caller must identify itself, TLS included."""
DESCRIPTORS: Final = 1
DESCRIPTORS_RELAYED: Final = 4
"""The descriptors of a caller in the process with the most: in the relay both ends, the owner, and the program."""

ComeIn = Callable[[Connection, messages.Hello], Awaitable[None]]


class Listener:
    """A listener. `come_in` gets an identified caller (`connection.peer`), and keeps it until it returns. It sends the
    Welcome itself; its error is sent to the caller.

    `max_connections` limits identified callers, of which one may be half; it is lower if this process may not open as
    many files. Others are `Strangers`. With `relayed` the relay carries the bytes, and `come_in` may hand the
    connection over.
    """

    def __init__(
        self, credentials: Credentials, listen: str, come_in: ComeIn, *, max_connections: int, relayed: bool = False
    ) -> None:
        self._credentials = credentials
        self._listen = listening.Listen.parse(listen)
        self._come_in = come_in
        self._max_connections = max_connections
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._relay = Relay(credentials) if relayed else None
        self._secret = ""
        self.strangers = Strangers()
        self.known: Counter[str] = Counter()
        """Connections of identified callers, by peer."""
        self.address = self._listen

    @property
    def is_open(self) -> bool:
        """Return whether callers can connect."""
        return self._accepting is not None

    async def open(self) -> None:
        """Listen. Raises InvalidInput."""
        self._credentials.check_address(self._listen)
        self._secret = self._credentials.secret()
        self._credentials.server_context()  # read again for each caller; this reports bad files now
        sock = listening.open_socket(self._listen)
        self.address = listening.bound(sock)
        each = DESCRIPTORS if self._relay is None else DESCRIPTORS_RELAYED
        places = places_for(self._max_connections + MAX_STRANGERS, descriptors=each)
        self.strangers = Strangers(at_most=min(MAX_STRANGERS, places // 4))
        self._max_connections = min(self._max_connections, places - places // 4)
        self._accepting = asyncio.create_task(accept(sock, self._take))

    async def serve(self) -> None:
        """Serve until cancelled, or until no caller can connect any more; then close every connection."""
        assert self._accepting is not None, "open() comes first"
        try:
            await self._accepting
        finally:
            self._accepting.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(self._accepting, *self._tasks, return_exceptions=True)
            if self._relay is not None:
                await self._relay.close()

    def _take(self, sock: socket.socket, address: str) -> None:
        """Count every caller from its first moment: before TLS, before its first byte."""
        task = asyncio.create_task(self._serve(sock, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, sock: socket.socket, address: str) -> None:
        """Serve one caller until it has gone."""
        task = asyncio.current_task()
        assert task is not None
        deadline = asyncio.get_running_loop().time() + HELLO_SECONDS
        place = self.strangers.add(address, task.cancel)
        try:
            async with asyncio.timeout_at(deadline):
                between, connection = await self._secured(sock)
            await self._keep(connection, between, place, deadline)
        except TimeoutError:
            log.info("caller refused", address=address, reason=f"no TLS connection within {HELLO_SECONDS:g} s")
        except (ElasticGPUError, OSError) as error:
            log.info("caller refused", address=address, reason=str(error))
        except asyncio.CancelledError:
            pass  # we end, or strangers have no more room
        finally:
            self.strangers.remove(place)

    async def _secured(self, sock: socket.socket) -> tuple[str, Connection]:
        """Return both ends of the caller's socket, which is taken, and the connection over it. With TLS its peer is the
        name in the caller's certificate; our own certificate and authority are read at this moment. Raises OSError,
        ElasticGPUError."""
        try:
            context = None if self._relay is not None else self._credentials.server_context()
            between = proof.ends(sock, accepted=True)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            sock.close()
            raise
        if self._relay is not None:
            return between, await self._relay.secure(sock, server=True)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=STREAM_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        tls = context is not None
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, sock, ssl=context,
            ssl_handshake_timeout=HELLO_SECONDS if tls else None, ssl_shutdown_timeout=CLOSE_SECONDS if tls else None,
        )  # fmt: skip
        connection = Connection(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        if tls:
            connection.peer = common_name(transport.get_extra_info("peercert") or {})
        return between, connection

    async def _keep(self, connection: Connection, between: str, place: int, deadline: float) -> None:
        """Serve an identified caller until it has gone."""
        try:
            hello = await self._identified(connection, between, deadline)
            self.strangers.remove(place)
            await self._attend(connection, hello)
        except* ElasticGPUError as group:
            error = _first(group)
            if not isinstance(error, Unavailable):
                log.info("caller refused", peer=connection.peer, reason=str(error))
            with contextlib.suppress(ElasticGPUError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    kind = type(error).__name__
                    await connection.send(messages.Rejected(reason=str(error), retryable=error.retryable, kind=kind))
        except* OSError as group:
            log.debug("caller lost", reason=str(group.exceptions[0]))
        except* asyncio.CancelledError:
            connection.writer.transport.abort()
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await connection.close()

    async def _identified(self, connection: Connection, between: str, deadline: float) -> messages.Hello:
        """Return the caller's Hello; from now on it is `connection.peer`. Raises Refused, Unavailable, CorruptData."""
        name, connection.peer = connection.peer, ""
        try:
            async with asyncio.timeout_at(deadline):
                if self._credentials.tls:  # read first: after a close with unread bytes it would not get our answer
                    hello = await connection.expect(messages.Hello, limit_bytes=MAX_HELLO_BYTES)
                    peer = certified(name)
                else:
                    hello, peer = await proof.demand(connection, self._secret, between), LOCAL_PEER
        except TimeoutError as error:
            raise Refused(f"no Hello within {HELLO_SECONDS:g} s") from error
        if hello.version != messages.VERSION:
            raise Refused(f"the pool's protocol {hello.version} is not supported; use version {messages.VERSION}")
        connection.peer = peer
        return hello

    async def _attend(self, connection: Connection, hello: messages.Hello) -> None:
        peer = connection.peer
        if self.known.total() >= self._max_connections:
            raise Unavailable(f"{self._max_connections} connections are open, which is the limit; try again later")
        if 2 * self.known[peer] >= self._max_connections:
            raise Unavailable(f"{peer} has {self.known[peer]} connections open, the limit for one caller; close some")
        self.known[peer] += 1
        try:
            await self._come_in(connection, hello)
        finally:
            self.known[peer] -= 1
            self.known += Counter()  # drop peers without one


def _first(group: BaseExceptionGroup[ElasticGPUError]) -> ElasticGPUError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ElasticGPUError)
    return error
