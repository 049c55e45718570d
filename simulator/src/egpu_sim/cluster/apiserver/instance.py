"""One run of the server: everything that a process has and loses when it is killed. `serve` keeps the rest: stored
objects, users by token, address and certificate."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator, Sequence
from typing import Final

import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from egpu_base.errors import Unavailable
from egpu_sim.cluster.apiserver.access.authorization import Authorizer, Listener
from egpu_sim.cluster.apiserver.access.identities import Tokens
from egpu_sim.cluster.apiserver.access.reviews import Reviews
from egpu_sim.cluster.apiserver.admission import quota
from egpu_sim.cluster.apiserver.admission.webhooks import Admission, ServiceResolver
from egpu_sim.cluster.apiserver.http.app import App
from egpu_sim.cluster.apiserver.http.handlers import Handlers
from egpu_sim.cluster.apiserver.kinds import builtin, crd
from egpu_sim.cluster.apiserver.kinds.resources import Registry
from egpu_sim.cluster.apiserver.nodes.logs import LogFinder, annotated_logs
from egpu_sim.cluster.apiserver.nodes.streaming import Streaming
from egpu_sim.cluster.apiserver.patching.dispatch import Patcher
from egpu_sim.cluster.apiserver.reading.watch import Hub
from egpu_sim.cluster.apiserver.storage.gc import Housekeeper
from egpu_sim.cluster.apiserver.storage.store import Store
from egpu_sim.cluster.apiserver.writing.deletion import Deleter
from egpu_sim.cluster.apiserver.writing.writes import Writer

START_SECONDS: Final = 10.0


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the embedding program handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Instance:
    """Made over an empty store, whose changes it then receives. Call `start`, then `end` or `kill`."""

    def __init__(
        self,
        store: Store,
        tokens: Tokens,
        *,
        listeners: Sequence[Listener],
        find_log: LogFinder | None,
        resolve_service: ServiceResolver | None,
    ) -> None:
        """Call `listeners` with every request and whether it is allowed."""
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
        """Serve a connection. One that was still being made when the process was killed gets nothing."""
        if self._killed:
            await Response(status_code=503, headers={"connection": "close"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def start(self, settings: uvicorn.Config, listener: socket.socket) -> None:
        """Return when it is served. Raises Unavailable, TimeoutError."""
        self._server = server = _Server(settings)
        self._serving = serving = asyncio.create_task(server.serve(sockets=[listener]))
        async with asyncio.timeout(START_SECONDS):
            while not server.started:
                if serving.done():
                    serving.result()
                    raise Unavailable("the simulated API server ended while it started")
                await asyncio.sleep(0.005)

    async def end(self) -> None:
        """End as after SIGTERM: requests finish, watches close."""
        self.hub.close()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait([self._serving])
        await self._housekeeper.stop()
        await self._admission.close()

    def kill(self) -> None:
        """End as after SIGKILL: no client is answered any more, and later writes are lost with the store. `end` then
        cleans up."""
        self._killed = True
        if self._server is not None:
            for listening in self._server.servers:
                listening.close()
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
