"""One run of the server: all that a process of it has and loses when it is killed. What outlives it is `serve`'s: the
stored objects, who is known by which token, the address and its certificate."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator, Sequence
from typing import Final

import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from egpu.embedded.apiserver import builtin, crd, quota
from egpu.embedded.apiserver.access import Tokens
from egpu.embedded.apiserver.admission import Admission, ServiceResolver
from egpu.embedded.apiserver.app import App
from egpu.embedded.apiserver.authorization import Authorizer, Listener
from egpu.embedded.apiserver.deletion import Deleter
from egpu.embedded.apiserver.gc import Housekeeper
from egpu.embedded.apiserver.handlers import Handlers
from egpu.embedded.apiserver.logs import LogFinder, annotated_logs
from egpu.embedded.apiserver.patching import Patcher
from egpu.embedded.apiserver.resources import Registry
from egpu.embedded.apiserver.reviews import Reviews
from egpu.embedded.apiserver.store import Store
from egpu.embedded.apiserver.streaming import Streaming
from egpu.embedded.apiserver.watch import Hub
from egpu.embedded.apiserver.writes import Writer
from egpu.errors import Unavailable

START_SECONDS: Final = 10.0


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals belong to whoever embeds the server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Instance:
    """Made over an empty store, which from then on tells it of every change; then `start`, and `end` or `kill`."""

    def __init__(
        self,
        store: Store,
        tokens: Tokens,
        *,
        listeners: Sequence[Listener],
        find_log: LogFinder | None,
        resolve_service: ServiceResolver | None,
    ) -> None:
        """`listeners` are told of every request whether it is allowed."""
        self.store = store
        registry = Registry()
        builtin.register(registry, crd.DefinitionRules())
        store.listen(crd.Definitions(registry, builtin.metadata_schema()).on_change)
        self.authorizer = Authorizer(store, listeners)
        self._admission = Admission(store, self.authorizer, resolve_service)
        deleter, logs = Deleter(store, self._admission), find_log or annotated_logs(store)
        self.hub, self._housekeeper = Hub(store), Housekeeper(store, registry, deleter)
        handlers = Handlers(
            store,
            hub=self.hub,
            writer=Writer(store, self._admission),
            deleter=deleter,
            patcher=Patcher(registry),
            logs=logs,
            reviews=Reviews(self.authorizer, tokens),
        )
        self._housekeeper.start()
        store.listen(quota.QuotaStatus(store).on_change)
        self._app = App(registry, handlers, Streaming(store), tokens, self.authorizer)
        self._killed = False
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What is served; nothing to a connection that was still being made when the process was killed."""
        if self._killed:
            await Response(status_code=503, headers={"connection": "close"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def start(self, settings: uvicorn.Config, listener: socket.socket) -> None:
        """Returns when it is served. Raises Unavailable, TimeoutError."""
        self._server = server = _Server(settings)
        self._serving = serving = asyncio.create_task(server.serve(sockets=[listener]))
        async with asyncio.timeout(START_SECONDS):
            while not server.started:
                if serving.done():
                    serving.result()
                    raise Unavailable("the embedded API server ended while it started")
                await asyncio.sleep(0.005)

    async def end(self) -> None:
        """As SIGTERM ends it: requests are finished, watches closed."""
        self.hub.close()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait([self._serving])
        await self._housekeeper.stop()
        await self._admission.close()

    def kill(self) -> None:
        """As SIGKILL ends it: nobody is answered any more, and what is written from now on is lost with the store.
        `end` then takes away what is left."""
        self._killed = True
        if self._server is not None:
            for listening in self._server.servers:
                listening.close()
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
