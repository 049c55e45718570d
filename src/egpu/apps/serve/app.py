"""Assembles a node daemon and runs it."""

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

from egpu.adapters.cards.nvml import CardReading, NvmlInventory
from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.images import Images
from egpu.adapters.executors.libraries import found, is_simulated, library_path
from egpu.adapters.executors.networks import can_be_linked
from egpu.adapters.executors.parents import ThisProcess
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.adapters.local import election
from egpu.adapters.local.election import Rank, SharingElection
from egpu.adapters.local.sharing import MachineSharing
from egpu.adapters.pool import messages
from egpu.adapters.pool.client import dial, machine_id, parse_address
from egpu.adapters.pool.connection import Connection, framed
from egpu.adapters.pool.data import connect_program, fastest_link_mbps
from egpu.adapters.pool.listener import Listener
from egpu.adapters.slices.overruns import MemoryWatch
from egpu.adapters.slices.sharing import TimeSlice
from egpu.apps.serve.arrivals import Arrivals
from egpu.apps.serve.config import ServeConfig
from egpu.apps.serve.departures import Departures
from egpu.apps.serve.links import Links
from egpu.apps.serve.owners import LeaseOwner
from egpu.apps.serve.rooms import LeaseRooms
from egpu.apps.serve.supervisor import READY_SECONDS, LeaseSupervisor
from egpu.core.leasing.records import Report
from egpu.core.placement import ledger
from egpu_base.errors import AlreadyExists, ElasticGPUError, NotFound, Refused
from egpu_base.runtime.looking import looking
from egpu_base.runtime.supervisor import Supervisor

log = structlog.get_logger(__name__)

REPORT_GAP_SECONDS = 0.01
"""The least time between two reports, however much changes."""
REPORT_REST = 100.0
"""While nothing changes, the pause between two reports is at least this many times the time that one takes."""
REPORT_AGAIN_SECONDS = 0.4 * messages.SERVER_SILENCE_SECONDS
"""The longest time between two reports, whatever a report costs, and even if it would say the same."""
RECONNECT_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
TAKEN_SECONDS = 2 * messages.SERVER_SILENCE_SECONDS
"""The time for which a starting daemon asks for a name that is in use. A server that was killed or cut off has lost the
name by then, so the name's owner is another server, and alive."""


class Server:
    """A node daemon."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.instance = secrets.token_hex(8)
        self.confinement = Confinement(config.confinement)
        self.images = Images(config.images_dir, config.image_cache_mib)
        folders = library_path(config.library_path, config.driver_dir)
        self.libraries = found(config.driver_dir, folders)
        executors = ExecutorSupervisor(
            config.leases_dir, LeaseOwner, ready_seconds=READY_SECONDS,
            parent=ThisProcess(config.driver_dir, self.confinement, self.images, libraries=folders),
        )  # fmt: skip
        self.movable = bool(self.confinement.holds.movable)
        self.arrivals = Arrivals(config.name)
        self.leases = LeaseSupervisor(
            executors, self.arrivals, watch_seconds=config.watch_seconds, movable=self.movable
        )  # fmt: skip
        self.departures = Departures(
            config.name, config.credentials, self.leases, self.arrivals, lambda: self.connected
        )  # fmt: skip
        self.links: Links | None = None
        if self.confinement.has_networks and can_be_linked():
            self.links = Links(config.name, config.credentials, self.leases.networks)
            self.leases.prepare = self.links.open
        self.listener = Listener(
            config.credentials, config.listen, self._come_in, max_connections=config.max_connections, relayed=True
        )
        self._inventory = NvmlInventory(config.nvml_library)
        self._memory = MemoryWatch(self._inventory)
        self.rooms = LeaseRooms(self.leases, self._memory)
        self._link_mbps = config.link_mbps or fastest_link_mbps()
        self.connected = False
        self._was_connected = False
        self._sharing = SharingElection(config.sharing_dir or config.state_dir / election.DIRECTORY, Rank.SERVE)
        self._leases_link = self._sharing.enter(config.leases_dir)

    async def run(self, supervisor: Supervisor) -> None:
        """Run until the supervisor stops. Executors stay for the next daemon, but Ctrl-C ends them, because the user
        wants the cards back. Raises InvalidInput, NativeMissing, Unavailable; AlreadyExists: another server has the
        name."""
        self._set_cards(await asyncio.to_thread(self._inventory.read))
        await self.leases.adopt()
        self.departures.adopt()
        await self.listener.open()
        log.info(
            "serving",
            name=self.config.name,
            listen=str(self.listener.address),
            cards=len(self.leases.cards),
            executors=self.confinement.told,
            images=self.images.told,
            links=self.links is not None,
            libraries=self.libraries,
        )
        supervisor.add("listener", self.listener.serve())
        supervisor.add("inventory", self._read_cards())
        supervisor.add("leases", self.leases.watch())
        supervisor.add("moves", self.departures.run())
        supervisor.add("memory", self._watch_memory())
        supervisor.add("sharing", self._share_time())
        supervisor.add("rooms", self.rooms.run())
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
                    log.warning("cards cannot be read", reason=str(error))
        finally:
            await asyncio.to_thread(self._inventory.close)

    def _set_cards(self, cards: tuple[CardReading, ...]) -> None:
        self.leases.cards = {card.uuid: card for card in cards}

    async def _watch_memory(self) -> None:
        """Compare leases with the driver's figures for their executors, forever."""
        watch = self._memory
        loop = asyncio.get_running_loop()

        def look() -> float:
            for overrun in watch.step(self.leases.watched()) if watch.is_due() else ():
                loop.call_soon_threadsafe(self.leases.end_over_limit, overrun)
            return watch.pause_seconds

        await looking(look)

    async def _share_time(self) -> None:
        """Share the time of this machine's cards, forever, while this process is elected to."""
        sharing = MachineSharing(self._sharing, slices=self._time_slices)
        try:
            await looking(sharing.step)
        finally:
            self._sharing.leave()

    def _time_slices(self) -> Iterator[TimeSlice]:
        """Yield all slices that share this machine's cards; the daemon knows which of its own leases are unused."""
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
                log.warning("another server has the same name", reason=str(group.exceptions[0]))
            except* ElasticGPUError as group:
                log.info("not connected to the broker", reason=str(group.exceptions[0]))
            failures = 0 if self.connected else failures + 1
            self.connected = False
            await asyncio.sleep(RECONNECT_SECONDS[min(failures, len(RECONNECT_SECONDS) - 1)])

    async def _link(self) -> None:
        """Use one connection to the broker, until it ends."""
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
                    self._order(orders)
                    if self.links is not None:
                        self.links.order(orders)
        finally:
            await connection.close()

    def _order(self, orders: messages.Orders) -> None:
        self.arrivals.order(orders)
        self.leases.order(orders)
        self.departures.order(orders)
        if orders.cordon is not None:
            if orders.cordon:
                self.config.cordoned_file.touch()
            else:
                self.config.cordoned_file.unlink(missing_ok=True)
            self.leases.changed.set()

    async def _report(self, connection: Connection) -> None:
        took_seconds, sent_at, sent, frame = 0.0, -math.inf, None, b""
        while True:
            with contextlib.suppress(TimeoutError):
                rest_seconds = max(self.config.report_seconds, REPORT_REST * took_seconds)
                async with asyncio.timeout(min(rest_seconds, REPORT_AGAIN_SECONDS)):
                    await self.leases.changed.wait()
            self.leases.changed.clear()
            began = time.thread_time()
            report = self.report()
            if report != sent:
                sent, sent_at, frame = report, -math.inf, framed(messages.Reported(report=report))
            if time.monotonic() - sent_at >= REPORT_AGAIN_SECONDS:
                await connection.send_frame(frame)
                sent_at = time.monotonic()
            took_seconds = time.thread_time() - began
            # A report has everything: with many leases it takes long, and changes are collected for as long.
            await asyncio.sleep(max(REPORT_GAP_SECONDS, 2 * took_seconds))

    def report(self) -> Report:
        """Return the report for the broker."""
        epoch, version = self.leases.read
        return Report(
            server=self.config.name,
            address=self.config.advertise or str(self.listener.address),
            host=machine_id(),
            link_mbps=self._link_mbps,
            instance=self.instance,
            cards=tuple(_for_core(card) for card in self.leases.cards.values()),
            leases=tuple(map(self.departures.noted, self.leases.report())),
            directory=str(self.config.leases_dir),
            confinement=self.confinement.told,
            collectives=self.links is not None,
            simulated=is_simulated(self.config.driver_dir),
            libraries=self.libraries,
            movable=self.movable,
            cordoned=self.config.cordoned_file.exists(),
            parking_mib=self.config.parking_mib,
            thrashing=self.rooms.thrashing,
            epoch=epoch,
            version=version,
        )

    # --- programs and servers -----------------------------------------------------------------------------------------

    async def _come_in(self, connection: Connection, hello: messages.Hello) -> None:
        """Connect a program with a valid token to its executor, and another server's networks to this server's."""
        if hello.role == "link":
            if self.links is None:
                raise Refused(f"{self.config.name} has no networks to link; start it with --collectives")
            await self.links.come_in(connection, hello)
            return
        if hello.role == "move":
            with contextlib.closing(self.arrivals.claim(connection.peer, hello)) as stream:
                await connection.hand_over(stream, last=messages.Welcome(name=connection.peer))
            return
        if hello.role != "data":
            raise Refused(
                f"a server does not accept the role {hello.role!r}: programs connect for data, servers for links and "
                "moves, all others to the broker"
            )
        executor = self.leases.executor(hello.lease, hello.place)
        if executor is None:
            raise NotFound(f"lease {hello.lease[:64]} does not run on {self.config.name}")
        owner = executor.record.owner.lease
        await connect_program(connection, hello, executor, key=owner.key, lease=owner.lease)


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
