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
from egpu.errors import CorruptData, ElasticGPUError

log = structlog.get_logger(__name__)


class Sweeper:
    """A slot stays while kubelet lists it, or its pod is on this node and has not finished: init containers'
    slots are not listed, and a restarted kubelet lists nothing at first."""

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
        alive = {pod.uid for pod in await self._pods.on_node() if not pod.finished}
        removed: list[str] = []
        for slot_id, record in before.items():
            if slot_id in held or (record is not None and record.pod_uid in alive):
                continue
            async with self._slot_lock(slot_id):
                if self._record(slot_id) == record:
                    self._specs.remove(slot_id)
                    await asyncio.to_thread(self._slots.remove, slot_id)
                    removed.append(slot_id)
        if removed:
            log.info("slots swept", slot_ids=removed)
        return tuple(removed)

    def _record(self, slot_id: str) -> SlotRecord | None:
        try:
            return self._slots.record(slot_id)
        except CorruptData as error:
            log.warning("a slot with a bad record", slot_id=slot_id, reason=str(error))
            return None
