"""Tells pods that one of their slices does not leave its card for others, and ends programs where the class says so.

A pod gets the first such event half a minute after the end of its turn, and then one a minute at most.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

import structlog

from egpu.adapters.slices.overruns import end_processes
from egpu.adapters.slices.overstays import Overstay
from egpu.apps.agent.limits.park_events import named
from egpu.apps.agent.limits.seldom import Seldom
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu_base.api.kubernetes import Pod
from egpu_base.api.quantities import MIB_BYTES
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.kubernetes.reflector import Reflector
from egpu_base.system.processes import Process

KEPT: Final = "GPUMemoryKeptFromOthers"
ENDED: Final = "GPUMemoryKeptTooLong"
EVENT_SECONDS: Final = 60.0
MOST_WAITING: Final = 1024
"""Overstays since the last look."""

log = structlog.get_logger(__name__)


class OverstayEvents:
    """`see` may be called in any thread. `holders` returns the processes that have memory of a card, by slice and the
    card's UUID; `pods` follows the node's pods."""

    def __init__(
        self,
        slots: Slots,
        pods: Reflector[Pod],
        events: EventRecorder,
        holders: Callable[[Hashable, str], tuple[Process, ...]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = slots
        self._pods = pods
        self._events = events
        self._holders = holders
        self._new = deque[Overstay](maxlen=MOST_WAITING)
        self._seldom = Seldom(EVENT_SECONDS, clock)

    def see(self, overstay: Overstay) -> None:
        """Note an overstay, if its pods are to be told or its programs to be ended."""
        if overstay.is_over or self._seldom.is_due(overstay.key):
            self._seldom.told(overstay.key)
            self._new.append(overstay)

    async def step(self) -> None:
        """End what is to be ended, and write the events."""
        if not self._new:
            return
        slices = self._slots.by_slice()
        while self._new:
            one = self._new.popleft()
            if one.is_over and not await self._end(one):
                continue  # they have ended meanwhile
            for record in slices.get(one.key, ()):
                if (pod := self._pods.by_uid(record.pod_uid)) is not None:
                    message = _message(record, one, slices.get(one.for_slice, ()))
                    await self._events.warn(pod, ENDED if one.is_over else KEPT, message)

    async def _end(self, one: Overstay) -> bool:
        """Return whether a process was ended."""
        pids = await asyncio.to_thread(end_processes, self._holders(one.key, one.uuid))
        log.warning("processes ended: kept memory from others", slot=one.key, uuid=one.uuid, pids=pids)
        return bool(pids)


def _message(record: SlotRecord, one: Overstay, others: tuple[SlotRecord, ...]) -> str:
    mib, seconds = one.beyond_bytes // MIB_BYTES, round(one.seconds)
    kept = f"{mib} MiB of card {one.uuid} beyond its own room for {seconds} s, while {named(record, others)} waits"
    if one.is_over:
        return f"container {record.container}: its processes were ended: they kept {kept}"
    limit = one.patience_seconds
    then = f"; they are ended after {limit:g} s" if limit else "; the class sets no parkingPatience to end them"
    return f"container {record.container}: its processes keep {kept}{then}"
