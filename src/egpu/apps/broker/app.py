"""Assembles a broker and runs it."""

from __future__ import annotations

import asyncio

import structlog
from starlette.applications import Starlette

from egpu.adapters.pool import messages
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.listener import Listener
from egpu.apps.broker.config import BrokerConfig
from egpu.apps.broker.metrics import PoolMetrics
from egpu.apps.broker.service import LeaseService
from egpu.apps.broker.sessions import ClientSession, ServerSessions
from egpu.core.policies.fleet import Fleet
from egpu.core.policies.prices import Prices, compute_prices
from egpu.core.policies.shapes import Mix
from egpu_base.errors import Refused
from egpu_base.http import listening, web
from egpu_base.monitoring import serve_monitoring, token_needed
from egpu_base.runtime.latest import Latest
from egpu_base.runtime.supervisor import Supervisor

log = structlog.get_logger(__name__)


class Broker:
    """A broker. `address` is where it listens, once it does."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.service = LeaseService(
            policy=config.policy, settle_seconds=config.settle_seconds, gather_seconds=config.gather_seconds
        )
        ranking = self.service.pool.ranking
        self.prices: Latest[tuple[Mix, Fleet], Prices] = Latest(
            lambda asked: compute_prices(*asked), ranking.use_prices
        )
        ranking.background = lambda mix, fleet: self.prices.ask((mix, fleet))
        self.servers = ServerSessions(self.service)
        self.listener = Listener(
            config.credentials, config.listen, self._come_in, max_connections=config.max_connections
        )

    @property
    def address(self) -> listening.Listen:
        return self.listener.address

    async def _come_in(self, connection: Connection, hello: messages.Hello) -> None:
        service = self.service
        welcome = messages.Welcome(name=connection.peer, epoch=service.pool.epoch, cards=service.cards(), moves=True)
        if hello.role == "client":
            await connection.send(welcome)
            await ClientSession(service, connection, follows=hello.follows).run()
        elif hello.role == "server":
            await self.servers.run(hello, connection, welcome)
        else:
            raise Refused(f"a broker does not accept the role {hello.role!r}; use client or server")

    async def run(self, supervisor: Supervisor) -> None:
        """Run until the supervisor stops."""
        await self.listener.open()
        log.info("broker starts", listen=str(self.address), tls=self.config.credentials.tls)
        if self.config.health:
            sock = listening.open_socket(listening.Listen.parse(self.config.health))
            supervisor.add("web", serve_monitoring(self.monitoring_app(), sock))
        supervisor.add("listener", self.listener.serve())
        supervisor.add("clock", self._tick())
        supervisor.add("prices", self.prices.run())
        await supervisor.run()

    def monitoring_app(self) -> Starlette:
        """Return health for everybody, and metrics for clients with the configured token: there is no API server to
        authorise them."""
        file = self.config.metrics_token_file
        if file is None:
            return Starlette(routes=web.open_routes(lambda: None))
        registry = self.service.acquisitions.registry
        registry.register(PoolMetrics(self.service))
        return Starlette(routes=web.health_routes(registry=registry, around=token_needed(file)))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.config.tick_seconds)
            self.service.tick()


async def run(config: BrokerConfig) -> None:
    """Run a broker until SIGTERM or SIGINT. Raises InvalidInput for addresses and files that it cannot use."""
    await Broker(config).run(Supervisor())
