"""Puts a broker together and runs it."""

from __future__ import annotations

import asyncio

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.applications import Starlette

from egpu.adapters import listening, web
from egpu.adapters.pool import messages
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.listener import Listener
from egpu.apps.broker.config import BrokerConfig
from egpu.apps.broker.service import LeaseService
from egpu.apps.broker.sessions import ClientSession, ServerSessions
from egpu.core.policies.fleet import Fleet
from egpu.core.policies.prices import Prices, compute_prices
from egpu.core.policies.shapes import Mix
from egpu.errors import Refused
from egpu.runtime.latest import Latest
from egpu.runtime.supervisor import Supervisor

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
        welcome = messages.Welcome(name=connection.peer, epoch=self.service.pool.epoch)
        if hello.role == "client":
            await connection.send(welcome)
            await ClientSession(self.service, connection).run()
        elif hello.role == "server":
            await connection.send(welcome)
            await self.servers.run(hello.name, connection)
        else:
            raise Refused(f"a broker has no role {hello.role!r}; it has client and server")

    async def run(self, supervisor: Supervisor) -> None:
        """Run until the supervisor is stopped."""
        await self.listener.open()
        log.info("broker starts", listen=str(self.address), tls=self.config.credentials.tls)
        if self.config.health:
            sock = listening.open_socket(listening.Listen.parse(self.config.health))
            registry = CollectorRegistry(auto_describe=False)
            registry.register(PoolMetrics(self.service))
            supervisor.add("web", web.serve(Starlette(routes=web.health_routes(registry=registry)), [sock]))
        supervisor.add("listener", self.listener.serve())
        supervisor.add("clock", self._tick())
        supervisor.add("prices", self.prices.run())
        await supervisor.run()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.config.tick_seconds)
            self.service.tick()


class PoolMetrics(Collector):
    """Cards and leases, read when asked."""

    def __init__(self, service: LeaseService) -> None:
        self._service = service

    def collect(self) -> list[GaugeMetricFamily]:
        leases = GaugeMetricFamily("elasticgpu_pool_leases", "Leases by state", labels=["state"])
        for state in ("granted", "active", "ending"):
            leases.add_metric([state], sum(one.state == state for one in self._service.pool.leases.values()))
        free = GaugeMetricFamily("elasticgpu_pool_memory_free_bytes", "Memory not given out", labels=["server"])
        core = GaugeMetricFamily("elasticgpu_pool_core_free_ratio", "Cards' compute not given out", labels=["server"])
        for server in self._service.server_views():
            free.add_metric([server.server], server.memory_free_mib * 1024 * 1024)
            core.add_metric([server.server], server.core_free / 100)
        return [leases, free, core]


async def run(config: BrokerConfig) -> None:
    """Run a broker until SIGTERM or SIGINT. Raises InvalidInput for what it cannot listen on or read."""
    await Broker(config).run(Supervisor())
