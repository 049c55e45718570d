"""Turns a container's allocation into its slot directory, for any caller.

An allocation names cards by UUID. Their current minor number and health are read for every preparation, because a
reboot changes them. If anything is wrong, the preparer raises an error and prepares nothing: no slice without
limits."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path

import structlog

from egpu.adapters import native
from egpu.adapters.cards.mig import FoundInstance
from egpu.adapters.cards.mps import Shown
from egpu.adapters.cards.nvml import CardReading
from egpu.adapters.programs.preloading import check_file_system
from egpu.adapters.slices import pages
from egpu.adapters.slices.rooms import first_room
from egpu.adapters.slices.work import Kind
from egpu.api import names
from egpu.api.allocation import ContainerAllocation
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.cards.mig_instances import Instances
from egpu.apps.agent.cards.mps_servers import MpsServers
from egpu.apps.agent.cards.time_slices import TimeSlices
from egpu.apps.agent.limits.driver import DriverLimits
from egpu.apps.agent.serving import bridges
from egpu.apps.agent.serving.bridges import SlotBridges
from egpu.apps.agent.serving.slot_executors import SlotExecutors, link_into
from egpu.apps.agent.slots import directories as layout
from egpu.apps.agent.slots.cdi import SlotSpecs
from egpu.apps.agent.slots.devices import DeviceFiles
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.apps.agent.slots.former import FormerUsers
from egpu.apps.agent.slots.injection import Injection
from egpu.apps.agent.slots.owners import Owner
from egpu.core.provisioners import provisioner
from egpu.core.provisioners.preparation import DeviceLimit, Preparation
from egpu_base.errors import NotSupported, TerminalError, Unavailable
from egpu_base.system.files import write_atomically
from egpu_base.system.processes import boot_id, seconds_since_boot

log = structlog.get_logger(__name__)


class Preparer:
    """Fills slot directories. `state_dir` also has this node's copy of the interposer. `bridges` lead to executors
    of other nodes, if the node is in the pool. `specs` are written if `injection` says that slots are CDI devices.
    `time_slices` sets how long programs keep a card, `driver_limits` lets the driver limit memory, and `mps` runs
    the servers of MPS slices. `former` waits for earlier users of the cards. Each may be missing."""

    def __init__(
        self,
        *,
        slots: Slots,
        state_dir: Path,
        devices: DeviceFiles,
        inventory: Inventory,
        node: str = "",
        executors: SlotExecutors | None = None,
        bridges: SlotBridges | None = None,
        instances: Instances | None = None,
        specs: SlotSpecs,
        injection: Injection,
        time_slices: TimeSlices | None = None,
        driver_limits: DriverLimits | None = None,
        mps: MpsServers | None = None,
        former: FormerUsers | None = None,
    ) -> None:
        self._slots = slots
        self._mps = mps
        self._former = former
        self._time_slices = time_slices
        self._driver_limits = driver_limits
        self._node = node
        self._executors = executors
        self._bridges = bridges
        self._instances = instances
        self._specs = specs
        self._injection = injection
        self._library_dir = state_dir / "lib"
        self._preloads: dict[bytes, Path] = {}
        self._devices = devices
        self._inventory = inventory
        self._boot_id = boot_id()
        self._first_come = asyncio.Lock()
        """Slots of one slice take turns: the first makes the slice, and the next finds it made."""

    async def prepare(self, slot_id: str, owner: Owner) -> SlotRecord:
        """Fill the slot with its owner's allocation, with nothing left of an earlier owner.

        Raises:
            TerminalError: the allocation cannot be prepared on this node, or its container would run outside its slice.
            Unavailable: a card of it is unhealthy, or not read yet.
        """
        if not owner.allocation.shared_claim:
            return await self._prepare(slot_id, owner)
        async with self._first_come:
            return await self._prepare(slot_id, owner)

    async def _prepare(self, slot_id: str, owner: Owner) -> SlotRecord:
        where = f"pod {owner.pod.key}, container {owner.container}"
        server = owner.allocation.cards_node(self._node)
        cards = await self._cards(where, owner.allocation) if server == self._node else []
        minors = {card.uuid: card.minor for card in cards}
        elsewhere = server != self._node
        plan = provisioner(owner.allocation.provisioner).prepare(where, owner.allocation, None if elsewhere else minors)
        by_environment = self._by_environment(where, owner, plan)
        if self._former is not None and not elsewhere:
            await self._former.leave(slot_id, owner)
        if self._mps is not None and plan.served is None:
            await self._mps.leave(minors)
        instance = await self._instance(where, plan)
        # No await from here until its slice is known to be needed by this slot, too.
        member = self._member(slot_id, owner.allocation, plan)
        generation = self._slots.next_generation()
        record = SlotRecord(
            slot_id=slot_id,
            namespace=owner.pod.namespace,
            pod=owner.pod.name,
            pod_uid=owner.pod.uid,
            container=owner.container,
            generation=generation,
            boot_id=self._boot_id,
            # All slots of one slice have the same size, which may be older than this pod's: the resizer follows.
            allocation=owner.allocation if member is None else member.allocation,
            minors=minors,
            server=server if elsewhere else "",
            slice_generation=generation if member is None else member.slice_generation,
            prepared_at=seconds_since_boot() if member is None else member.prepared_at,
            resource_claim=owner.resource_claim,
        )
        try:
            link = await self._executor(record, plan)
            libraries = {file: await self._library(artefact) for file, artefact in plan.libraries.items()}
            preload = await self._preload(layout.preloaded(plan))
            fill = partial(self._fill, plan=plan, link=link, member=member, libraries=libraries, preload=preload)
            await self._limit_by_driver(where, owner)
            async with self._time_sliced(where, record.allocation), self._served(where, plan) as shown:
                # A hundred quick calls of the file system, in this thread. Another thread would have to get the
                # interpreter back after each of them, which costs several times as much in a burst of starts.
                self._make(record, plan, fill, by_environment=by_environment, instance=instance, shown=shown)
        except OSError as error:
            raise Unavailable(f"{where}: its slot directory cannot be created: {error}") from error
        finally:
            for executors in (self._executors, self._bridges):
                if executors is not None:
                    executors.settled(record)
        log.info(
            "prepared",
            slot_id=slot_id,
            pod=owner.pod.key,
            uid=owner.pod.uid,
            container=owner.container,
            generation=record.generation,
            provisioner=owner.allocation.provisioner,
            minors=record.minors,
            server=server,
        )
        return record

    def _member(self, slot_id: str, allocation: ContainerAllocation, plan: Preparation) -> SlotRecord | None:
        """Return another slot with the slice of this allocation since this boot, the last prepared one; None if
        there is none, or the executor of their slice has ended."""
        if not allocation.shared_claim:
            return None
        cards = [share.uuid for share in allocation.cards]
        members = [
            record
            for record in self._slots.records()
            if (record.allocation.shared_claim, record.boot_id) == (allocation.shared_claim, self._boot_id)
            and [share.uuid for share in record.allocation.cards] == cards
            and record.slot_id != slot_id
        ]
        newest = max(members, key=lambda record: record.generation, default=None)
        if newest is None or plan.executor is None or (self._executors is not None and self._executors.serves(newest)):
            return newest
        return None

    async def _cards(self, where: str, allocation: ContainerAllocation) -> list[CardReading]:
        """Return the allocation's cards on this node."""
        if not allocation.cards:
            raise TerminalError(f"{where}: its allocation names no card")
        if any(share.uuid not in self._inventory.cards for share in allocation.cards):
            await self._inventory.refresh()
        cards = [self._inventory.cards[share.uuid] for share in allocation.cards if share.uuid in self._inventory.cards]
        for card in cards:
            if not card.healthy:
                raise Unavailable(f"{where}: card {card.uuid} is unhealthy: {card.reason}")
        return cards

    async def _executor(self, record: SlotRecord, plan: Preparation) -> Callable[[Path], None] | None:
        """Return a function that links the container's executor into its slot; None if the container has the cards
        itself."""
        if plan.executor is None:
            return None
        if plan.executor == "elsewhere":
            if self._bridges is None:
                raise NotSupported(f"node {record.server} has the cards, and this node is not in the pool")
            return partial(bridges.link, await self._bridges.start(record))
        if self._executors is None:
            raise TerminalError("this agent is not configured to run executors")
        return partial(link_into, executor=await self._executors.start(record))

    async def _limit_by_driver(self, where: str, owner: Owner) -> None:
        if owner.allocation.memory_isolation:
            if self._driver_limits is None:
                raise NotSupported(f"{where}: this agent cannot let the driver limit memory")
            await self._driver_limits.apply(owner)

    def _time_sliced(self, where: str, allocation: ContainerAllocation) -> AbstractAsyncContextManager[None]:
        """Set the time slice that the technology wants on its cards, for the time inside; leave them if it wants
        none."""
        if not provisioner(allocation.provisioner).time_slice(allocation):
            return nullcontext()
        if self._time_slices is None:
            raise NotSupported(f"{where}: this agent cannot change time slices")
        return self._time_slices.while_made(allocation)

    def _served(self, where: str, plan: Preparation) -> AbstractAsyncContextManager[Shown | None]:
        """Run the MPS server of its card for the time inside, and yield what its programs share with it; None if they
        have no server."""
        if plan.served is None:
            return nullcontext()
        if self._mps is None or not self._injection.cdi:
            raise TerminalError(f"{where}: an MPS slice needs CDI, which this node does not support")
        return self._mps.while_made(plan.served)

    async def _instance(self, where: str, plan: Preparation) -> FoundInstance | None:
        """Return the container's MIG instance, created if needed; None if it has none."""
        if plan.instance is None:
            return None
        if self._instances is None or not self._injection.cdi:
            raise TerminalError(f"{where}: a MIG instance needs CDI, which this node does not support")
        found = await self._instances.have(plan.instance.uuid, plan.instance.place)
        await self._inventory.refresh()
        return found

    def _by_environment(self, where: str, owner: Owner, plan: Preparation) -> bool:
        """Return whether the pod wants LD_PRELOAD beside /etc/ld.so.preload. Raises TerminalError if that is
        impossible."""
        wanted = owner.pod.annotations.get(names.PRELOAD, "")
        if wanted not in ("", names.PRELOAD_ENVIRONMENT):
            raise TerminalError(f"{where}: {names.PRELOAD} is {wanted!r}; it must be {names.PRELOAD_ENVIRONMENT}")
        if not wanted or not plan.libraries:
            return bool(wanted)
        if not self._injection.cdi:
            raise TerminalError(f"{where}: {names.PRELOAD} needs CDI, which this node does not support")
        containers = [each for each in owner.pod.all_containers if each.name == owner.container]
        if any(variable.name == "LD_PRELOAD" for each in containers for variable in each.env or ()):
            raise TerminalError(f"{where}: {names.PRELOAD} needs LD_PRELOAD, which the container sets itself")
        log.warning("preloaded by environment: a program that clears it escapes its limits", pod=owner.pod.key)
        return True

    def _make(
        self,
        record: SlotRecord,
        plan: Preparation,
        fill: Callable[[Path], None],
        *,
        by_environment: bool,
        instance: FoundInstance | None,
        shown: Shown | None,
    ) -> None:
        self._slots.replace(record, fill)
        if self._injection.cdi:
            self._describe(record, plan, by_environment=by_environment, instance=instance, shown=shown)

    def _describe(
        self,
        record: SlotRecord,
        plan: Preparation,
        *,
        by_environment: bool,
        instance: FoundInstance | None = None,
        shown: Shown | None = None,
    ) -> None:
        """Write the CDI device of a slot."""
        self._specs.write(
            record.slot_id,
            plan,
            by_environment=by_environment,
            instance=instance,
            shown=shown,
            visible=provisioner(record.allocation.provisioner).visible_devices(record.allocation),
        )

    def describe(self, record: SlotRecord, owner: Owner) -> None:
        """Write the CDI device of a prepared slot again. Raises TerminalError."""
        where = f"pod {owner.pod.key}, container {owner.container}"
        plan = provisioner(record.allocation.provisioner).prepare(where, record.allocation, record.minors)
        self._describe(record, plan, by_environment=self._by_environment(where, owner, plan))

    def _fill(
        self,
        slot: Path,
        *,
        plan: Preparation,
        link: Callable[[Path], None] | None,
        member: SlotRecord | None,
        libraries: Mapping[str, Path],
        preload: Path,
    ) -> None:
        if link is not None:
            link(slot)
        if plan.policy and member is not None:
            self._slots.share_pages(slot, member)
        else:
            if plan.policy:
                lines = [policy_line(limit) for limit in plan.policy]
                parking = pages.Parking() if plan.parkable else None
                if plan.room_bytes is not None:
                    parking = first_room(plan.room_bytes)
                pages.write_policy(slot / layout.POLICY_FILE, lines, fresh=True, parking=parking)
            self._slots.create_usage(slot)
        for file, copy in libraries.items():
            os.link(copy, slot / file)
            check_file_system(slot / file)
        os.link(preload, slot / layout.PRELOAD_FILE)
        self._devices.link(slot / layout.DEVICES, plan.minors, self._inventory.minors)

    async def _library(self, artefact: str) -> Path:
        """Return one of our libraries, copied once per build beside the slots: a hard link cannot leave its file
        system."""
        source = native.path(artefact)
        found = source.stat()
        copy = self._library_dir / f"{found.st_mtime_ns:x}-{found.st_size:x}-{artefact.replace('/', '-')}"
        if not copy.exists():
            await asyncio.to_thread(self._copy, source, copy)
        return copy

    async def _preload(self, paths: Sequence[str]) -> Path:
        """Return a file that names these libraries: written once by each agent, and linked into the slots."""
        content = "".join(f"{path}\n" for path in paths).encode()
        if (known := self._preloads.get(content)) is None:
            known = self._library_dir / f"{hashlib.sha256(content).hexdigest()[:32]}-{layout.PRELOAD_FILE}"
            await asyncio.to_thread(self._keep, known, content, 0o644)
            self._preloads[content] = known
        return known

    def _copy(self, source: Path, copy: Path) -> None:
        self._keep(copy, source.read_bytes(), 0o755)

    def _keep(self, file: Path, content: bytes, mode: int) -> None:
        self._library_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content, mode=mode, durable=True)


def policy_line(limit: DeviceLimit) -> pages.DevicePolicy:
    """Return a limit as a line of the policy page."""
    shared = pages.Mode.SHARE if limit.work_conserving else pages.Mode.CAP
    return pages.DevicePolicy(
        uuid=limit.uuid,
        minor=limit.minor,
        mode=shared if limit.core_percent else pages.Mode.UNLIMITED,
        core_ppm=limit.core_percent * pages.PPM // 100,
        memory_limit_bytes=limit.memory_bytes,
        weight=limit.weight,
        spill_limit_bytes=limit.spill_bytes,
        kind=Kind.LATENCY if limit.latency else Kind.BATCH,
    )
