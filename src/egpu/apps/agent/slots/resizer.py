"""Makes running slices what their pods' allocations say by now, and says on the cards which sizes are in force.

An allocation is followed by its revision, never back to an earlier one. The page comes first, then the slot's record;
what is said of a slice on its card is what both are, and how much its programs still have beyond it. The scheduler
gives that to others only when nothing is left of it (`egpu.core.resizing`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import msgspec
import structlog

from egpu.adapters.kubernetes import Client
from egpu.adapters.kubernetes.reflector import Change, Reflector
from egpu.adapters.slices.attribution import WatchedSlice
from egpu.adapters.slices.overruns import Overrun
from egpu.adapters.slices.pages import UsageReader, amend_policy
from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, decode_allocation
from egpu.api.kubernetes import Pod
from egpu.api.objects import ElasticGPU, SliceInForce, card_name
from egpu.api.quantities import MIB_BYTES
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.limits.memory import MemoryReconciler
from egpu.apps.agent.serving.bridges import SlotBridges
from egpu.apps.agent.serving.pods import PodService
from egpu.apps.agent.serving.slots import SlotExecutors
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.apps.agent.slots.preparer import policy_line
from egpu.core.overruns import CONTEXT_BYTES
from egpu.core.provisioners import provisioner
from egpu.errors import CorruptData, ElasticGPUError, NotFound
from egpu.runtime.beats import within

LOOK_SECONDS = 0.25
REST_SECONDS = 0.5
"""Between two looks at whether a slot came or went, where no slice was resized and none waits for that."""
SETTLE_SECONDS = 0.75
"""A size counts as in force this long after its page was written: an allocation that was let in by the old one has
been seen by then."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ResizedSlice:
    """A slice of this node's cards that was resized. `watched` is None where nothing in its programs is limited."""

    key: Hashable
    pod: str
    container: str
    revision: int
    cards: tuple[CardShare, ...]
    within_seconds: float | None
    watched: WatchedSlice | None


class SlotResizer:
    """`run` until it is cancelled. `slot_lock`: held while a slot is changed, by whoever changes it."""

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
        self._pods = Reflector(client, Pod, fields=f"spec.nodeName={node}")
        self._changed = asyncio.Event()
        self._pods.on_change(self._pod_changed)
        self._since: dict[tuple[Hashable, int], float] = {}
        """When a revision of a slice was first seen in force, in monotonic seconds."""
        self._said: dict[str, list[SliceInForce]] = {}

    def _pod_changed(self, change: Change[Pod]) -> None:
        """Most changes are of its status, and none of ours. Nor is a pod that goes, or comes as it was bound: its slot
        is prepared as it says, and `run` hears of slots. After a gap in the watch one may come resized."""
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
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.run())
            await self._pods.synced.wait()
            while True:
                self._changed.clear()
                here = self._here()
                waits = await self.step()
                within_seconds = LOOK_SECONDS if waits else REST_SECONDS
                while not await self._told(within_seconds) and not waits and self._here() == here:
                    pass

    def _here(self) -> Hashable:
        """Another one when a slot came or went, or an executor that serves another node's pod came, went or got another
        size."""
        served = self._serving.executors() if self._serving is not None else ()
        return self._slots.last_change, tuple((one.name, one.record.owner.revision) for one in served)

    async def _told(self, within_seconds: float) -> bool:
        """Whether a pod changed."""
        try:
            async with asyncio.timeout_at(within(within_seconds, now=asyncio.get_running_loop().time())):
                return await self._changed.wait()
        except TimeoutError:
            return False

    async def step(self) -> bool:
        """Look at every slot once, then say what is in force. Returns whether something may still come of what is here:
        where no slice ever got another size, only pods and slots that change bring anything new."""
        waits = False
        for record in list(self._slots.records()):
            wanted = self._wanted(record)
            if wanted is not None and wanted != record.allocation and wanted.revision >= record.allocation.revision:
                waits = True
                try:
                    await self._follow(record, wanted)
                except (ElasticGPUError, OSError) as error:
                    log.warning("a slice is not resized yet", slot_id=record.slot_id, reason=str(error))
        resized = list(self._resized())
        try:
            await self._say(resized)
        except ElasticGPUError as error:
            waits = True
            log.info("sizes in force are not said yet", reason=str(error))
        return waits or bool(resized)

    def _wanted(self, record: SlotRecord) -> ContainerAllocation | None:
        pod = self._pods.by_uid(record.pod_uid)
        text = pod.annotations.get(names.ALLOCATION) if pod is not None else None
        try:
            return None if text is None else decode_allocation(text).containers.get(record.container)
        except CorruptData:
            return None

    # --- making them so -----------------------------------------------------------------------------------------------

    async def _follow(self, record: SlotRecord, wanted: ContainerAllocation) -> None:
        """Raises Unavailable, CorruptData, OSError; it is tried again."""
        async with self._slot_lock(record.slot_id):
            if self._slots.record(record.slot_id) != record:
                return  # another's by now, or prepared anew
            if wanted.revision > record.allocation.revision:
                # Of those that have one slice the first makes it so; who is told later must not undo a later order.
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
            self._executors.resize(record, wanted.cards)
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
        """What its programs have of a card beyond the size in force; contexts may stay, as for any slice."""
        if one.watched is None:
            return 0
        share = one.cards[position]
        # Of those that live: what the dead held is taken out of the totals when the next process asks.
        processes = UsageReader(one.watched.usage).read().processes
        counted = sum(process.memory_bytes for process in processes if process.device == position)
        driver = self._memory.held_bytes(one.key, share.uuid) - CONTEXT_BYTES
        return max(0, max(counted, driver) - share.memory_mib * MIB_BYTES)

    async def _end(self, one: ResizedSlice, share: CardShare, over_bytes: int) -> None:
        """Its time to give back is over."""
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
