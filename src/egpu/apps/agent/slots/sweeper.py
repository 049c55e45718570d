"""Removes slots that no container has any more, whichever program forgot them and whenever the agent was killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import structlog

from egpu.api import names
from egpu.apps.agent.slots.cdi import SlotSpecs
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.apps.agent.slots.leftovers import Leftovers, end_leftovers
from egpu.apps.agent.slots.owners import PodReader
from egpu_base.errors import CorruptData, ElasticGPUError
from egpu_base.kubelet.podresources import PodHoldings

log = structlog.get_logger(__name__)


class Sweeper:
    """Removes slots. A slot stays while kubelet lists it, or its pod is on this node and has not finished: init
    containers' slots are not listed, and a restarted kubelet lists nothing at first. When the pod's object is gone,
    the slot goes with all processes of the pod: its cards may have new users. Slots of ResourceClaims last as long as
    those (`egpu.apps.agent.dra.driver`)."""

    def __init__(
        self,
        *,
        slots: Slots,
        specs: SlotSpecs,
        holdings: Callable[[], Awaitable[Sequence[PodHoldings]]],
        pods: PodReader,
        slot_lock: Callable[[str], asyncio.Lock],
        interval_seconds: float,
        end: Callable[[Sequence[Leftovers]], Mapping[Leftovers, Sequence[int]]] = end_leftovers,
    ) -> None:
        """`end`: ends leftovers, as `end_leftovers`."""
        self._end = end
        self._slots = slots
        self._specs = specs
        self._holdings = holdings
        self._pods = pods
        self._slot_lock = slot_lock
        self._interval_seconds = interval_seconds

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            try:
                await self.sweep()
            except ElasticGPUError as error:
                log.info("slots not swept", reason=str(error))

    async def sweep(self) -> tuple[str, ...]:
        """Remove free slots and return their ids. Raises Unavailable if kubelet or the API server does not answer."""
        found = {slot_id: self._record(slot_id) for slot_id in self._slots.ids()}
        before = {slot_id: one for slot_id, one in found.items() if one is None or one.resource_claim is None}
        if not before:
            return ()
        held = {
            slot_id
            for pod in await self._holdings()
            for container in pod.containers
            for slot_id in container.devices.get(names.SLOT, ())
        }
        pods = {pod.uid: pod for pod in await self._pods.on_node()}
        free: list[str] = []
        gone: set[str] = set()
        for slot_id, record in before.items():
            pod = None if record is None else pods.get(record.pod_uid)
            if record is not None and pod is None:
                gone.add(slot_id)
            elif slot_id in held or (pod is not None and not pod.finished):
                continue
            free.append(slot_id)
        async with contextlib.AsyncExitStack() as locked:
            for slot_id in free:
                await locked.enter_async_context(self._slot_lock(slot_id))
            still = {slot_id: before[slot_id] for slot_id in free if self._record(slot_id) == before[slot_id]}
            for slot_id in still:
                self._specs.remove(slot_id)
            await self._end_leftovers([record for record in still.values() if record and record.slot_id in gone])
            await asyncio.to_thread(self._remove, still)
        if still:
            log.info("slots swept", slot_ids=list(still))
        return tuple(still)

    def _remove(self, slot_ids: Iterable[str]) -> None:
        for slot_id in slot_ids:
            self._slots.remove(slot_id)

    async def _end_leftovers(self, records: Iterable[SlotRecord]) -> None:
        """End leftovers of all records at once: that looks at every process of the machine."""
        leftovers = {
            Leftovers(
                record.pod_uid,
                slot=self._slots.path(record.slot_id),
                policy=None if self._slots.others(record) else self._slots.policy_file(record.slot_id),
            ): record
            for record in records
        }
        if not leftovers:
            return
        for one, killed in (await asyncio.to_thread(self._end, tuple(leftovers))).items():
            where = f"{leftovers[one].namespace}/{leftovers[one].pod}"
            log.warning("processes of a forcibly deleted pod ended", pod=where, pids=killed)

    def _record(self, slot_id: str) -> SlotRecord | None:
        try:
            return self._slots.record(slot_id)
        except CorruptData as error:
            log.warning("slot with an unreadable record", slot_id=slot_id, reason=str(error))
            return None
