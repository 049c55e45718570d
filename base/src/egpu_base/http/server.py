"""uvicorn inside a process that also does other work. It counts its callers from the moment they are accepted.

Our HTTP servers identify few of their callers (the API server and kubelet have no certificate for us), so a connection
counts by its use: with a request in hand it has a place; without one, in TLS or idle, it is one of the `Strangers`, of
which the oldest is dropped first when there are too many.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

import structlog
import uvicorn
from starlette.responses import PlainTextResponse

from egpu_base.http.post_server import PostProtocol, Posts
from egpu_base.http.post_streams import HTTP_2, StreamsProtocol
from egpu_base.http.strangers import MAX_STRANGERS, Strangers, accept, places_for

log = structlog.get_logger(__name__)

HANDSHAKE_SECONDS: Final = 10.0
FIRST_REQUEST_SECONDS: Final = 10.0
"""The limit for a connection's first request; a connection without one is closed."""
MAX_REQUESTS: Final = 1024
"""Requests answered at the same time. One address may have half: kube-apiserver has at most 200 writes in hand."""
_SHUTDOWN_SECONDS: Final = 1.0
TICK_SECONDS: Final = 1.0
POST_VERSIONS: Final = (HTTP_2, "http/1.1")
"""The versions of HTTP in which `Posts` are served, for TLS."""
NOBODY: Final = ("", 0)


@dataclass(eq=False)
class _Caller:
    """One connection. `place` is its number among the strangers while it has no request in hand."""

    address: str
    transport: asyncio.Transport | None = None
    place: int = 0
    requests: int = 0


class _Agreement(asyncio.Protocol):
    """Gives the connection to the protocol for the version that client and server agreed on in TLS, if any."""

    def __init__(self, agreed: Callable[[str | None], asyncio.Protocol]) -> None:
        self._agreed = agreed

    def connection_made(self, transport: Any) -> None:
        session = transport.get_extra_info("ssl_object")
        chosen = self._agreed(session.selected_alpn_protocol() if session is not None else None)
        transport.set_protocol(chosen)
        chosen.connection_made(transport)


class Server(uvicorn.Server):
    """uvicorn without its own signal handling, which the supervisor has, and without its own accepting."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        posts: Posts | None = None,
    ) -> None:
        """Ask `tls` at every connection; None means plain HTTP. `posts` replace the application."""
        super().__init__(config)
        self._tls = tls
        self._posts = posts
        self.strangers = Strangers()
        self.answering: Counter[str] = Counter()
        """Requests in hand, by address."""
        self._callers: dict[tuple[str, int], _Caller] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()
        config.app = _counting(config.app, self)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def stop(self) -> None:
        """Let `serve` return, after finishing requests that have begun."""
        self.should_exit = True
        self._stopped.set()

    async def main_loop(self) -> None:
        """Update the date of answers once a second; uvicorn's own loop wakes ten times as often."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._stopped.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])  # all but accepting
        places = places_for(MAX_REQUESTS + MAX_STRANGERS, descriptors=1)
        self.strangers = Strangers(at_most=min(MAX_STRANGERS, places // 4))
        for sock in sockets or []:
            self._spawn(accept(sock, lambda caller, address: self._spawn(self._begin(caller, address))))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cut idle connections first: over TLS a polite close waits for a client that does not listen."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for caller in list(self._callers.values()):
            if caller.transport is not None and not caller.requests and not caller.transport.get_write_buffer_size():
                caller.transport.abort()
        await super().shutdown(sockets)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin(self, sock: socket.socket, address: str) -> None:
        """Do the TLS handshake, if any, then pass the connection to uvicorn."""
        task = asyncio.current_task()
        assert task is not None
        try:
            client = sock.getpeername()[:2]
        except OSError:
            sock.close()
            return
        caller = self._callers[client] = _Caller(address)
        place = self.strangers.add(address, task.cancel)
        tls = None if self._tls is None else self._tls()
        try:
            caller.transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol(client), sock, ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if tls else None,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS if tls else None,
            )  # fmt: skip
        except OSError as error:  # TLS errors too
            log.info("caller turned away", address=address, reason=str(error))
            self._callers.pop(client, None)
            return
        except BaseException:
            self._callers.pop(client, None)
            raise
        finally:
            self.strangers.remove(place)
        if client in self._callers:
            self._rest(caller)
            asyncio.get_running_loop().call_later(FIRST_REQUEST_SECONDS, self._expire, caller, caller.place)

    def _protocol(self, client: tuple[str, int]) -> asyncio.Protocol:
        if (posts := self._posts) is not None:
            seconds = self.config.timeout_keep_alive

            def agreed(version: str | None) -> asyncio.Protocol:
                kind = StreamsProtocol if version == HTTP_2 else PostProtocol
                one = kind(posts, self.server_state, lambda: self.answer(client), idle_seconds=seconds)
                return self._noting_the_end(one, client)

            return _Agreement(agreed)
        make: Any = self.config.http_protocol_class
        made: asyncio.Protocol = make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        return self._noting_the_end(made, client)

    def _noting_the_end(self, made: asyncio.Protocol, client: tuple[str, int]) -> asyncio.Protocol:
        """Return the protocol, which forgets the caller when its connection ends."""
        lost = made.connection_lost

        def connection_lost(exc: Exception | None) -> None:
            lost(exc)
            if caller := self._callers.pop(client, None):
                self.strangers.remove(caller.place)

        made.connection_lost = connection_lost
        return made

    def _rest(self, caller: _Caller) -> None:
        """Note that the connection has no request in hand."""
        if caller.transport is not None and not caller.requests:
            caller.place = self.strangers.add(caller.address, caller.transport.abort)

    def _expire(self, caller: _Caller, place: int) -> None:
        if caller.transport is not None and place and caller.place == place and not caller.requests:
            caller.transport.abort()

    @contextlib.contextmanager
    def answer(self, client: tuple[str, int]) -> Generator[bool, None, None]:
        """Count one request of a connection, and yield whether there is room for it."""
        caller = self._callers.get(client)
        address = "" if caller is None else caller.address
        roomy = self.answering.total() < MAX_REQUESTS and self.answering[address] < MAX_REQUESTS // 2
        self.answering[address] += 1
        if caller is not None:
            self.strangers.remove(caller.place)
            caller.requests += 1
        try:
            yield roomy
        finally:
            self.answering[address] -= 1
            if not self.answering[address]:
                del self.answering[address]
            if caller is not None:
                caller.requests -= 1
                if self._callers.get(client) is caller:
                    self._rest(caller)


def _counting(app: Any, server: Server) -> Callable[[Any, Any, Any], Awaitable[None]]:
    """Return `app` with its requests counted; it refuses requests when there is no room."""

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        with server.answer(scope.get("client") or NOBODY) as roomy:
            chosen = app if roomy else PlainTextResponse("too many requests at once\n", status_code=503)
            await chosen(scope, receive, send)

    return counted
