"""Tells pods that the arbiter asked one of their slices to leave its card: for which other one, and why.

A pod gets the first such event at once, and then one a minute at most, which says how often it was asked meanwhile. The
other pod is named if it is in the same namespace, and else by its UID, as kube-scheduler does for preemption.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Final

from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.core.arbiter import Park
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.kubernetes.reflector import Reflector

REASON: Final = "GPUMemoryParkedForOther"
EVENT_SECONDS: Final = 60.0
MOST_WAITING: Final = 1024
"""Slices asked since the last look, and pods remembered: more than a node has of both."""


@dataclass(frozen=True)
class _Told:
    """What a pod was told last, and what has happened since."""

    at: float
    since: int = 0
    message: str = ""


class ParkEvents:
    """`told` may be called in any thread. `pods` follows the node's pods."""

    def __init__(
        self, slots: Slots, pods: Reflector[Pod], events: EventRecorder, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slots = slots
        self._pods = pods
        self._events = events
        self._clock = clock
        self._new = deque[tuple[Hashable, Park]](maxlen=MOST_WAITING)
        self._told: OrderedDict[str, _Told] = OrderedDict()

    def told(self, key: Hashable, park: Park) -> None:
        """Note that a slice was asked to leave its card for another."""
        self._new.append((key, park))

    async def step(self) -> None:
        """Write the events that are due."""
        if self._new:
            slices = self._slots.by_slice()
            while self._new:
                key, park = self._new.popleft()
                for record in slices.get(key, ()):
                    self._count(record, park, slices.get(park.for_slice, ()))
        now = self._clock()
        for uid, told in list(self._told.items()):
            if told.since and now - told.at >= EVENT_SECONDS:
                self._told[uid] = _Told(now)
                if (pod := self._pods.by_uid(uid)) is not None:
                    times = f" ({told.since} times since the last event)" if told.since > 1 else ""
                    await self._events.note(pod, REASON, told.message + times)

    def _count(self, record: SlotRecord, park: Park, others: tuple[SlotRecord, ...]) -> None:
        known = self._told.setdefault(record.pod_uid, _Told(at=-EVENT_SECONDS))
        other = named(record, others)
        message = f"container {record.container}: asked to leave the card for {other}: {park.why.value}"
        self._told[record.pod_uid] = replace(known, since=known.since + 1, message=message)
        self._told.move_to_end(record.pod_uid)
        if len(self._told) > MOST_WAITING:
            self._told.popitem(last=False)


def named(record: SlotRecord, others: tuple[SlotRecord, ...]) -> str:
    """Return how a pod is told of another slice, by the other's records."""
    if not others:
        return "a slice that has ended"
    other = others[0]
    return f"pod {other.pod}" if other.namespace == record.namespace else f"pod {other.pod_uid}"
