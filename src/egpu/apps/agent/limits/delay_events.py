"""Tells pods that long kernels of one delay latency work of another, on the same card.

Both pods get an event, and then one in ten minutes at most. The other pod is named if it is in the same namespace, and
else by its UID, as kube-scheduler does for preemption. The length of the kernels is the slice's own account, and the
events say so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from egpu.adapters.slices.long_kernels import LongKernels
from egpu.api.names import EVENT_DELAYED, EVENT_DELAYS
from egpu.apps.agent.limits.park_events import named
from egpu.apps.agent.limits.seldom import Seldom
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.kubernetes.reflector import Reflector
from egpu_base.runtime.beats import rest

EVENT_SECONDS: Final = 600.0
LOOK_SECONDS: Final = 5.0


class DelayEvents:
    """Runs until cancelled. `found` returns the slices with long kernels now; `pods` follows the node's pods."""

    def __init__(
        self,
        slots: Slots,
        pods: Reflector[Pod],
        events: EventRecorder,
        found: Callable[[], Sequence[LongKernels]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = slots
        self._pods = pods
        self._events = events
        self._found = found
        self._seldom = Seldom(EVENT_SECONDS, clock)

    async def run(self) -> None:
        await self._pods.synced.wait()
        while True:
            await self.step()
            await rest(LOOK_SECONDS)

    async def step(self) -> None:
        """Write the events that are due."""
        found = self._found()
        if not found:
            return
        slices = self._slots.by_slice()
        for one in found:
            length = f"launches of {one.kernel_ns / 1e6:.0f} ms, by its own account,"
            delayed = [record for key in one.delays for record in slices.get(key, ())[:1]]
            for record in slices.get(one.key, ()):
                others = ", ".join(named(record, (other,)) for other in delayed) or "latency work"
                text = f"container {record.container}: {length} delay {others}, which waits for the one that runs"
                await self._tell(record, EVENT_DELAYS, text)
                for other in delayed:
                    text = f"container {other.container}: {length} of {named(other, (record,))} delay it"
                    await self._tell(other, EVENT_DELAYED, text)

    async def _tell(self, record: SlotRecord, reason: str, message: str) -> None:
        pod, key = self._pods.by_uid(record.pod_uid), (record.pod_uid, reason)
        if pod is not None and self._seldom.is_due(key):
            self._seldom.told(key)
            await self._events.warn(pod, reason, message)
