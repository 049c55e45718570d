"""Puts a node daemon together and runs it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import structlog

from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.images import Images
from egpu.adapters.executors.networks import can_be_linked
from egpu.adapters.executors.parents import ThisProcess
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.adapters.local import election
from egpu.adapters.local.election import Rank, SharingElection
from egpu.adapters.local.sharing import MachineSharing
from egpu.adapters.nvml import CardReading, NvmlInventory
from egpu.adapters.pool import messages
from egpu.adapters.pool.client import dial, machine_id, parse_address
from egpu.adapters.pool.connection import Connection, framed
from egpu.adapters.pool.data import connect_program, fastest_link_mbps
from egpu.adapters.pool.listener import Listener
from egpu.adapters.slices.overruns import MemoryWatch
from egpu.adapters.slices.sharing import TimeSlice
from egpu.apps.serve.config import ServeConfig
from egpu.apps.serve.links import Links
from egpu.apps.serve.supervisor import READY_SECONDS, LeaseOwner, LeaseSupervisor
from egpu.core.leasing.records import Report
from egpu.core.placement import ledger
from egpu.errors import AlreadyExists, ElasticGPUError, NotFound, Refused
from egpu.runtime.looking import looking
from egpu.runtime.supervisor import Supervisor

log = structlog.get_logger(__name__)

REPORT_GAP_SECONDS = 0.01
"""Between two reports, however much changes."""
REPORT_REST = 100.0
"""And how many times as long as one takes, while nothing does: what leases use is looked at again."""
REPORT_AGAIN_SECONDS = 0.4 * messages.SERVER_SILENCE_SECONDS
"""So often the broker hears of us at least, whatever a report takes, and however often it would say the same."""
RECONNECT_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
TAKEN_SECONDS = 2 * messages.SERVER_SILENCE_SECONDS
"""So long a daemon that starts asks for a name that another has. What was killed, or the network has cut off, is away
sooner than this: who still has the name then is another server, and alive."""


class Server:
    """A node daemon."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.instance = secrets.token_hex(8)
        self.confinement = Confinement(config.confinement)
        self.images = Images(config.images_dir, config.image_cache_mib)
        executors = ExecutorSupervisor(
            config.leases_dir, LeaseOwner, parent=ThisProcess(config.driver_dir, self.confinement, self.images),
            ready_seconds=READY_SECONDS,
        )  # fmt: skip
        self.leases = LeaseSupervisor(executors, watch_seconds=config.watch_seconds)
        self.links: Links | None = None
        if self.confinement.has_networks and can_be_linked():
            self.links = Links(config.name, config.credentials, self.leases.networks)
            self.leases.prepare = self.links.open
        self.listener = Listener(
            config.credentials, config.listen, self._come_in, max_connections=config.max_connections, relayed=True
        )
        self._inventory = NvmlInventory(config.nvml_library)
        self._link_mbps = config.link_mbps or fastest_link_mbps()
        self.connected = False
        self._was_connected = False
        self._sharing = SharingElection(config.sharing_dir or config.state_dir / election.DIRECTORY, Rank.SERVE)
        self._leases_link = self._sharing.enter(config.leases_dir)

    async def run(self, supervisor: Supervisor) -> None:
        """Run until the supervisor is stopped. Executors stay, for the daemon that follows; who presses Ctrl-C wants
        his cards back. Raises InvalidInput, NativeMissing, Unavailable; AlreadyExists: another server has our name."""
        self._set_cards(await asyncio.to_thread(self._inventory.read))
        await self.leases.adopt()
        await self.listener.open()
        log.info(
            "serving",
            name=self.config.name,
            listen=str(self.listener.address),
            cards=len(self.leases.cards),
            executors=self.confinement.told,
            images=self.images.told,
            links=self.links is not None,
        )
        supervisor.add("listener", self.listener.serve())
        supervisor.add("inventory", self._read_cards())
        supervisor.add("leases", self.leases.watch())
        supervisor.add("memory", self._watch_memory())
        supervisor.add("sharing", self._share_time())
        if self.links is not None:
            supervisor.add("links", self.links.run())
        supervisor.add("link", self._stay_linked())
        await supervisor.run()
        if supervisor.interrupted:
            await self.leases.end_all()
            await asyncio.to_thread(self.images.clear)

    # --- cards --------------------------------------------------------------------------------------------------------

    async def _read_cards(self) -> None:
        try:
            while True:
                await asyncio.sleep(self.config.inventory_seconds)
                try:
                    self._set_cards(await asyncio.to_thread(self._inventory.read))
                except ElasticGPUError as error:
                    log.warning("the cards cannot be read", reason=str(error))
        finally:
            await asyncio.to_thread(self._inventory.close)

    def _set_cards(self, cards: tuple[CardReading, ...]) -> None:
        self.leases.cards = {card.uuid: card for card in cards}

    async def _watch_memory(self) -> None:
        """Hold leases to what the driver says that their executors hold, for ever."""
        watch = MemoryWatch(self._inventory)
        loop = asyncio.get_running_loop()

        def look() -> float:
            for overrun in watch.step(self.leases.watched()) if watch.is_due() else ():
                loop.call_soon_threadsafe(self.leases.end_over_limit, overrun)
            return watch.pause_seconds

        await looking(look)

    async def _share_time(self) -> None:
        """Share out the time of this machine's cards, for ever, while it falls to this process."""
        sharing = MachineSharing(self._sharing, slices=self._time_slices)
        try:
            await looking(sharing.step)
        finally:
            self._sharing.leave()

    def _time_slices(self) -> Iterator[TimeSlice]:
        """All that share this machine's cards; of our leases we are told when a program uses them."""
        for one in self._sharing.slices():
            place = one.policy.parent
            own = place.parent == self._leases_link
            yield replace(one, unused=partial(self.leases.is_unused, place.name)) if own else one

    # --- broker -------------------------------------------------------------------------------------------------------

    async def _stay_linked(self) -> None:
        failures, taken_since = 0, math.inf
        while True:
            try:
                await self._link()
            except* AlreadyExists as group:
                taken_since = min(taken_since, time.monotonic())
                if not self._was_connected and time.monotonic() - taken_since >= TAKEN_SECONDS:
                    raise
                log.warning("another server has our name", reason=str(group.exceptions[0]))
            except* ElasticGPUError as group:
                log.info("not connected to the broker", reason=str(group.exceptions[0]))
            failures = 0 if self.connected else failures + 1
            self.connected = False
            await asyncio.sleep(RECONNECT_SECONDS[min(failures, len(RECONNECT_SECONDS) - 1)])

    async def _link(self) -> None:
        """One connection to the broker, until it ends."""
        hello = messages.Hello(role="server", name=self.config.name, instance=self.instance)
        address = parse_address(self.config.broker, "--broker")
        connection, _ = await dial(address, self.config.credentials, hello, expect="broker")
        self.connected = self._was_connected = True
        self.leases.changed.set()
        log.info("connected to the broker", broker=str(address))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._report(connection))
                while True:
                    orders = await connection.expect(messages.Orders)
                    self.leases.order(orders)
                    if self.links is not None:
                        self.links.order(orders)
        finally:
            await connection.close()

    async def _report(self, connection: Connection) -> None:
        took_seconds, told_at, told, frame = 0.0, -math.inf, None, b""
        while True:
            with contextlib.suppress(TimeoutError):
                rest_seconds = max(self.config.report_seconds, REPORT_REST * took_seconds)
                async with asyncio.timeout(min(rest_seconds, REPORT_AGAIN_SECONDS)):
                    await self.leases.changed.wait()
            self.leases.changed.clear()
            began = time.thread_time()
            report = self.report()
            if report != told:
                told, told_at, frame = report, -math.inf, framed(messages.Reported(report=report))
            if time.monotonic() - told_at >= REPORT_AGAIN_SECONDS:
                await connection.send_frame(frame)
                told_at = time.monotonic()
            took_seconds = time.thread_time() - began
            # A report says everything: with many leases it takes long, and changes are gathered for as long.
            await asyncio.sleep(max(REPORT_GAP_SECONDS, 2 * took_seconds))

    def report(self) -> Report:
        """What the broker is told now."""
        epoch, version = self.leases.read
        return Report(
            server=self.config.name,
            address=self.config.advertise or str(self.listener.address),
            host=machine_id(),
            link_mbps=self._link_mbps,
            instance=self.instance,
            cards=tuple(_for_core(card) for card in self.leases.cards.values()),
            leases=self.leases.report(),
            directory=str(self.config.leases_dir),
            confinement=self.confinement.told,
            collectives=self.links is not None,
            simulated=self.config.driver_dir is not None,
            epoch=epoch,
            version=version,
        )

    # --- programs and servers -----------------------------------------------------------------------------------------

    async def _come_in(self, connection: Connection, hello: messages.Hello) -> None:
        """Connect a program that proves its lease to the lease's executor, and another server's networks to ours."""
        if hello.role == "link":
            if self.links is None:
                raise Refused(f"{self.config.name} has no networks to be linked: it runs without --collectives")
            await self.links.come_in(connection, hello)
            return
        if hello.role != "data":
            raise Refused(
                f"a server has no role {hello.role!r}; programs come for data, servers for links, everything else is "
                "the broker's"
            )
        executor = self.leases.executor(hello.lease)
        if executor is None:
            raise NotFound(f"lease {hello.lease[:64]} does not run on {self.config.name}")
        await connect_program(connection, hello, executor, key=executor.record.owner.lease.key)


def _for_core(card: CardReading) -> ledger.Card:
    return ledger.Card(
        uuid=card.uuid,
        index=card.index,
        minor=card.minor,
        memory_mib=card.memory_mib,
        model=card.model,
        tflops={} if card.tflops is None else {"fp32": card.tflops},
        numa=-1 if card.numa is None else card.numa,
        healthy=card.healthy,
    )


async def run(config: ServeConfig) -> None:
    """Run a node daemon until SIGTERM or SIGINT."""
    await Server(config).run(Supervisor())
