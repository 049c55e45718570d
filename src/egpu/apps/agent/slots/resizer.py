"""Applies new sizes from pods' allocations to running slices, and reports the sizes in force on the cards.

An allocation is followed by its revision, never back to an earlier one. The page is written first, then the slot's
record. A card reports a slice's size once both have it, with the memory that its programs still have beyond it. The
scheduler gives that memory to others only when it is zero (`egpu.core.resizing`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import msgspec
import structlog

from egpu.adapters.slices.attribution import WatchedSlice
from egpu.adapters.slices.overruns import Overrun
from egpu.adapters.slices.pages import UsageReader, amend_policy
from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, decode_allocation
from egpu.api.objects import ElasticGPU, SliceInForce, card_name
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.limits.memory import MemoryReconciler
from egpu.apps.agent.serving.bridges import SlotBridges
from egpu.apps.agent.serving.pod_service import PodService
from egpu.apps.agent.serving.slot_executors import SlotExecutors
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.apps.agent.slots.preparer import policy_line
from egpu.core.kept_pods import of_node, of_node_of_large
from egpu.core.overruns import CONTEXT_BYTES
from egpu.core.provisioners import provisioner
from egpu_base.api.kubernetes import Pod
from egpu_base.api.quantities import MIB_BYTES
from egpu_base.errors import CorruptData, ElasticGPUError, NotFound
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.reflector import Change, Reflector
from egpu_base.runtime.beats import within

LOOK_SECONDS = 0.25
REST_SECONDS = 0.5
"""Time between two looks for new or removed slots, while no slice is resized or waits for a resize."""
SETTLE_SECONDS = 0.75
"""A size counts as in force this long after its page was written: allocations under the old size are visible by
then."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ResizedSlice:
    """A resized slice of this node's cards. `watched` is None if nothing limits its programs."""

    key: Hashable
    pod: str
    container: str
    revision: int
    cards: tuple[CardShare, ...]
    within_seconds: float | None
    watched: WatchedSlice | None


class SlotResizer:
    """Runs until cancelled. `slot_lock`: the lock of a slot that is being changed. `pods` follows the node's pods;
    another part runs it."""

    def __init__(
        self,
        client: Client,
        node: str,
        *,
        inventory: Inventory,
        slots: Slots,
        executors: SlotExecutors,
        bridges: SlotBridges | None,
        serving: PodService | None,
        memory: MemoryReconciler,
        slot_lock: Callable[[str], asyncio.Lock],
    ) -> None:
        self._client = client
        self._node = node
        self._inventory = inventory
        self._slots = slots
        self._executors = executors
        self._bridges = bridges
        self._serving = serving
        self._memory = memory
        self._slot_lock = slot_lock
        fields = f"spec.nodeName={node}"
        self.pods = Reflector(client, Pod, fields=fields, transform=of_node, large=of_node_of_large)
        self._changed = asyncio.Event()
        self.pods.on_change(self._pod_changed)
        self._since: dict[tuple[Hashable, int], float] = {}
        """The time at which a revision of a slice was first seen in force, in monotonic seconds."""
        self._said: dict[str, list[SliceInForce]] = {}

    def _pod_changed(self, change: Change[Pod]) -> None:
        """Look only at changed allocations: most changes are of a pod's status. A new pod's slot is prepared with
        its allocation, and `run` notices slots. After a gap in the watch, a pod may appear already resized."""
        if change.new is None:
            return
        text = change.new.annotations.get(names.ALLOCATION)
        if change.old is None:
            changed = text is not None and _was_resized(text)
        else:
            changed = change.old.annotations.get(names.ALLOCATION) != text
        if changed:
            self._changed.set()

    async def run(self) -> None:
        await self.pods.synced.wait()
        while True:
            self._changed.clear()
            here = self._here()
            waits = await self.step()
            within_seconds = LOOK_SECONDS if waits else REST_SECONDS
            while not await self._pod_changed_within(within_seconds) and not waits and self._here() == here:
                pass

    def _here(self) -> Hashable:
        """Return a value that changes when a slot comes or goes, or an executor for another node's pod comes, goes
        or changes its size."""
        served = self._serving.executors() if self._serving is not None else ()
        return self._slots.last_change, tuple((one.name, one.record.owner.revision) for one in served)

    async def _pod_changed_within(self, within_seconds: float) -> bool:
        """Return whether a pod changed."""
        try:
            async with asyncio.timeout_at(within(within_seconds, now=asyncio.get_running_loop().time())):
                return await self._changed.wait()
        except TimeoutError:
            return False

    async def step(self) -> bool:
        """Look at every slot once, then report sizes in force. Returns whether a later step may still change
        something; while no slice was ever resized, only changed pods and slots do."""
        waits = False
        for record in list(self._slots.records()):
            wanted = self._wanted(record)
            if wanted is not None and wanted != record.allocation and wanted.revision >= record.allocation.revision:
                waits = True
                try:
                    await self._follow(record, wanted)
                except (ElasticGPUError, OSError) as error:
                    log.warning("slice not resized yet", slot_id=record.slot_id, reason=str(error))
        resized = list(self._resized())
        try:
            await self._say(resized)
        except ElasticGPUError as error:
            waits = True
            log.info("sizes in force not reported yet", reason=str(error))
        return waits or bool(resized)

    def _wanted(self, record: SlotRecord) -> ContainerAllocation | None:
        pod = self.pods.by_uid(record.pod_uid)
        text = pod.annotations.get(names.ALLOCATION) if pod is not None else None
        try:
            return None if text is None else decode_allocation(text).containers.get(record.container)
        except CorruptData:
            return None

    # --- making them so -----------------------------------------------------------------------------------------------

    async def _follow(self, record: SlotRecord, wanted: ContainerAllocation) -> None:
        """Resize one slot. Raises Unavailable, CorruptData, OSError; it is tried again."""
        async with self._slot_lock(record.slot_id):
            if self._slots.record(record.slot_id) != record:
                return  # reused by now, or prepared again
            if wanted.revision > record.allocation.revision:
                # The first slot of a shared slice resizes it; a later one must not undo a newer order.
                if wanted.revision > await asyncio.to_thread(self._slots.revision, record):
                    await self._resize(record, wanted)
                sizes = [f"{share.core} % {share.memory_mib} MiB" for share in wanted.cards]
                log.info("resized", slot_id=record.slot_id, uid=record.pod_uid, revision=wanted.revision, cards=sizes)
            await asyncio.to_thread(self._slots.amend, msgspec.structs.replace(record, allocation=wanted))

    async def _resize(self, record: SlotRecord, wanted: ContainerAllocation) -> None:
        if record.server:
            if self._bridges is not None:
                await self._bridges.resize(record)
            return
        plan = provisioner(wanted.provisioner).prepare(f"slot {record.slot_id}", wanted, record.minors)
        if plan.executor is not None:
            self._executors.resize(record, wanted)
            return
        page = self._slots.policy_file(record.slot_id)
        for limit in plan.policy:
            line = policy_line(limit)
            await asyncio.to_thread(
                amend_policy, page, line.uuid, mode=line.mode, core_ppm=line.core_ppm, weight=line.weight,
                memory_limit_bytes=line.memory_limit_bytes, spill_limit_bytes=line.spill_limit_bytes, grant_ppm=0,
            )  # fmt: skip

    # --- saying so ----------------------------------------------------------------------------------------------------

    def _resized(self) -> Iterator[ResizedSlice]:
        resized = [one for one in self._slots.records() if one.allocation.revision and not one.server]
        watched = {one.key: one for one in self._memory.slices()} if resized else {}
        for record in resized:
            given, key = record.allocation, record.slice
            yield ResizedSlice(
                key, record.pod_uid, record.container, given.revision, given.cards, given.within_seconds,
                watched.get(key),
            )  # fmt: skip
        for executor in self._serving.executors() if self._serving is not None else ():
            owner, key = executor.record.owner, executor.name
            if owner.revision:
                yield ResizedSlice(
                    key, owner.uid, owner.container, owner.revision, executor.record.cards, owner.within_seconds,
                    executor.watched(key),
                )  # fmt: skip

    async def _say(self, resized: list[ResizedSlice]) -> None:
        now = time.monotonic()
        self._since = {(one.key, one.revision): self._since.get((one.key, one.revision), now) for one in resized}
        said: dict[str, list[SliceInForce]] = {card: [] for card in self._inventory.cards}
        for one in resized:
            seconds = now - self._since[one.key, one.revision]
            for position, share in enumerate(one.cards):
                over = self._over_bytes(one, position)
                if over and one.within_seconds is not None and seconds >= one.within_seconds:
                    await self._end(one, share, over)
                elif seconds >= SETTLE_SECONDS:
                    said.setdefault(share.uuid, []).append(
                        SliceInForce(
                            pod=one.pod, container=one.container, revision=one.revision, over_mib=-(-over // MIB_BYTES)
                        )
                    )
        for uuid, lines in said.items():
            if self._said.get(uuid) != lines:
                await self._write(uuid, lines)

    def _over_bytes(self, one: ResizedSlice, position: int) -> int:
        """Return the memory of a card that programs have beyond the size in force; contexts may stay, as for any
        slice."""
        if one.watched is None:
            return 0
        share = one.cards[position]
        # Of living processes: the next process that asks removes the dead ones from the totals.
        processes = UsageReader(one.watched.usage).read().processes
        counted = sum(process.memory_bytes for process in processes if process.device == position)
        driver = self._memory.held_bytes(one.key, share.uuid) - CONTEXT_BYTES
        return max(0, max(counted, driver) - share.memory_mib * MIB_BYTES)

    async def _end(self, one: ResizedSlice, share: CardShare, over_bytes: int) -> None:
        """End a slice whose time to give back is over."""
        assert one.watched is not None
        limit = share.memory_mib * MIB_BYTES
        holders = self._memory.holders(one.key, share.uuid)
        await self._memory.end(Overrun(one.watched, share.uuid, limit + over_bytes, limit, holders))

    async def _write(self, uuid: str, lines: list[SliceInForce]) -> None:
        patch = {"status": {"inForce": lines}}
        try:
            await self._client.patch(ElasticGPU, card_name(self._node, uuid), patch, subresource="status")
        except NotFound:
            return  # not published yet
        self._said[uuid] = lines


def _was_resized(text: str) -> bool:
    try:
        return decode_allocation(text).revision > 0
    except CorruptData:
        return False
