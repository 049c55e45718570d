"""A pool in this process: the real broker, and servers made of nothing that do what they are ordered."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

from egpu.adapters.pool import messages
from egpu.adapters.pool.client import PoolClient, dial
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.security import Credentials, create_secret
from egpu.apps.broker import Broker, BrokerConfig
from egpu.core.leasing.records import LeaseRecord, Report, RunningLease
from egpu.core.placement.ledger import Card
from egpu_base.errors import ElasticGPUError
from egpu_base.http.listening import Listen
from egpu_base.runtime.supervisor import Supervisor
from support.waiting import DEADLINE_SECONDS, until

CARD_MIB = 80_000


def secret(directory: Path) -> Credentials:
    path = directory / "pool.secret"
    create_secret(path)
    return Credentials(secret_file=path)


@contextlib.asynccontextmanager
async def broker(
    credentials: Credentials, listen: str = "127.0.0.1:0", *, gather_seconds: float = 0.0
) -> AsyncGenerator[Broker]:
    config = BrokerConfig(
        credentials, listen=listen, tick_seconds=0.05, settle_seconds=DEADLINE_SECONDS, gather_seconds=gather_seconds
    )
    made = Broker(config)
    supervisor = Supervisor(signals=())
    running = asyncio.create_task(made.run(supervisor))
    try:
        await until(lambda: made.listener.is_open or running.done())
        if running.done():
            running.result()
        yield made
    finally:
        supervisor.stop()
        await running


class FakeServer:
    """Connects to the broker and does what it is ordered, at once."""

    def __init__(
        self, name: str, address: Listen, credentials: Credentials, *, cards: int = 1, host: str = "", link: int = 1000,
        simulated: bool = False, instance: str = "1",
    ) -> None:  # fmt: skip
        self.name, self.address, self.credentials = name, address, credentials
        self.simulated, self.instance = simulated, instance
        self.host, self.link = host or name, link
        self.cards = tuple(
            Card(uuid=f"GPU-{name}-{index}", index=index, minor=index, memory_mib=CARD_MIB) for index in range(cards)
        )
        self.runs: dict[str, LeaseRecord] = {}
        self.read = ("", 0)
        self.connection: Connection | None = None
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        hello = messages.Hello(role="server", name=self.name, instance=self.instance)
        self.connection, _ = await dial(self.address, self.credentials, hello, expect="broker")
        await self._report()
        self.task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """As if killed: the connection closes, what runs runs on."""
        assert self.task is not None
        assert self.connection is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.connection.close()
        self.read = ("", 0)

    async def _report(self) -> None:
        assert self.connection is not None
        leases = tuple(
            RunningLease(record=record, occupied_mib=tuple(c.memory_mib for c in record.cards), ready=True)
            for record in self.runs.values()
        )
        report = Report(
            server=self.name, address="127.0.0.1:1", host=self.host, link_mbps=self.link, instance=self.instance,
            cards=self.cards, leases=leases, epoch=self.read[0], version=self.read[1], simulated=self.simulated,
        )  # fmt: skip
        await self.connection.send(messages.Reported(report=report))

    async def _follow(self) -> None:
        assert self.connection is not None
        receiving = asyncio.create_task(self.connection.expect(messages.Orders))
        with contextlib.suppress(ElasticGPUError), contextlib.ExitStack() as stack:
            stack.callback(lambda: receiving.cancel() or (receiving.done() and receiving.exception()))
            while True:
                done, _ = await asyncio.wait([receiving], timeout=0.5)
                if done:
                    orders = receiving.result()
                    self.runs = {record.lease: record for record in orders.leases}
                    self.read = (orders.epoch, orders.version)
                    receiving = asyncio.create_task(self.connection.expect(messages.Orders))
                await self._report()


async def client(made: Broker, credentials: Credentials) -> PoolClient:
    return await PoolClient.connect(made.address, credentials)
