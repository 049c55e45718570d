"""Removes slots that no container holds any more, whoever forgot them and whenever we were killed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from egpu.adapters.kubelet.podresources import PodHoldings
from egpu.api import names
from egpu.apps.agent.slots.cdi import SlotSpecs
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.apps.agent.slots.owners import PodReader
from egpu.apps.agent.slots.remains import end_remains
from egpu.errors import CorruptData, ElasticGPUError

log = structlog.get_logger(__name__)


class Sweeper:
    """A slot stays while kubelet lists it, or its pod is on this node and has not finished: init containers'
    slots are not listed, and a restarted kubelet lists nothing at first. When the pod's object is gone it goes, with
    whatever of the pod still runs: its cards may be others' by now."""

    def __init__(
        self,
        *,
        slots: Slots,
        specs: SlotSpecs,
        holdings: Callable[[], Awaitable[Sequence[PodHoldings]]],
        pods: PodReader,
        slot_lock: Callable[[str], asyncio.Lock],
        interval_seconds: float,
    ) -> None:
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
                log.info("not swept", reason=str(error))

    async def sweep(self) -> tuple[str, ...]:
        """Remove what nobody holds; returns their ids. Raises Unavailable when kubelet or the API do not answer."""
        before = {slot_id: self._record(slot_id) for slot_id in self._slots.ids()}
        if not before:
            return ()
        held = {
            slot_id
            for pod in await self._holdings()
            for container in pod.containers
            for slot_id in container.devices.get(names.SLOT, ())
        }
        pods = {pod.uid: pod for pod in await self._pods.on_node()}
        removed: list[str] = []
        for slot_id, record in before.items():
            pod = None if record is None else pods.get(record.pod_uid)
            gone = record is not None and pod is None
            if (slot_id in held and not gone) or (pod is not None and not pod.finished):
                continue
            async with self._slot_lock(slot_id):
                if self._record(slot_id) == record:
                    self._specs.remove(slot_id)
                    if record is not None and gone:
                        await self._end_remains(record)
                    await asyncio.to_thread(self._slots.remove, slot_id)
                    removed.append(slot_id)
        if removed:
            log.info("slots swept", slot_ids=removed)
        return tuple(removed)

    async def _end_remains(self, record: SlotRecord) -> None:
        page = None if self._slots.others(record) else self._slots.policy_file(record.slot_id)
        killed = await asyncio.to_thread(end_remains, record.pod_uid, self._slots.path(record.slot_id), page)
        if killed:
            where = f"{record.namespace}/{record.pod}"
            log.warning("processes of a pod that was deleted by force are ended", pod=where, pids=killed)

    def _record(self, slot_id: str) -> SlotRecord | None:
        try:
            return self._slots.record(slot_id)
        except CorruptData as error:
            log.warning("a slot with a bad record", slot_id=slot_id, reason=str(error))
            return None
