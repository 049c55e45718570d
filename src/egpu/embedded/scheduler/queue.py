"""Pods that wait to be scheduled: kube-scheduler's queue, with its rules of when a pod is looked at again.

    active          looked at next: higher priority first, then the one that waits longest
    backing off     rejected, and something happened since that may help: looked at after a second, then two, four …
                    ten, or at once when nothing else is active; after an error always after that time
    unschedulable   rejected, and nothing happened since: looked at when something does, and after five minutes anyway

What may help whom is in `egpu.embedded.scheduler.events`. A pod being scheduled is in none of the three. What happens
meanwhile is kept, and counts when it comes back rejected.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from egpu.api.kubernetes import Pod
from egpu.embedded.scheduler.events import Event, may_help, waiting_pod_events

INITIAL_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 10.0
MAX_UNSCHEDULABLE_SECONDS = 300.0


class Place(Enum):
    """Which part of the queue a pod is in."""

    ACTIVE = auto()
    BACKING_OFF = auto()
    RECOVERING = auto()
    """Backing off after an error."""
    UNSCHEDULABLE = auto()
    IN_FLIGHT = auto()


@dataclass
class QueuedPod:
    """A pod in the queue. `rejected_by` names plugins; empty after an error, which no change of the cluster mends."""

    pod: Pod
    since: float
    place: Place = Place.IN_FLIGHT
    ticket: int = 0
    """Of its newest entry in a heap: older ones are stale."""
    rejected_by: frozenset[str] = frozenset()
    rejections: int = 0
    errors: int = 0
    meanwhile: list[Event] = field(default_factory=list[Event])

    @property
    def ready_at(self) -> float:
        """When its backoff is over, on the queue's clock."""
        return self.since + backoff_seconds(self.errors or self.rejections)


def backoff_seconds(attempts: int) -> float:
    """How long a pod is left alone after so many attempts: 0, 1, 2, 4, 8, 10, 10 …"""
    return min(MAX_BACKOFF_SECONDS, INITIAL_BACKOFF_SECONDS * 2.0 ** min(attempts - 1, 10)) if attempts else 0.0


class SchedulingQueue:
    """`pop` gives the next pod, which ends with `done` or `put_back`. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pods: dict[str, QueuedPod] = {}
        self._heaps: dict[Place, list[tuple[tuple[float, float], int, str]]] = {place: [] for place in Place}
        self._tickets = itertools.count(1)
        self._changed = asyncio.Event()

    # ------------------------------------------------------------------ pods that come, change and go

    def offer(self, old: Pod | None, pod: Pod) -> None:
        """A pod that waits for a node was seen, for the first time or changed."""
        known = self._pods.get(pod.uid)
        if known is None:
            known = self._pods[pod.uid] = QueuedPod(pod, self._clock())
            self._move(known, Place.ACTIVE)
            return
        known.pod = pod
        for event in waiting_pod_events(old, pod) if old is not None else ():
            self._happened(known, event)

    def drop(self, uid: str) -> None:
        """The pod was bound, deleted, or is nobody's business any more."""
        self._pods.pop(uid, None)

    def happened(self, events: Iterable[Event], *, besides: str = "") -> None:
        """Something changed in the cluster: whoever it may help is looked at again. `besides`: the UID of a pod that
        it does not concern."""
        for event in events:
            for queued in self._pods.values():
                if queued.pod.uid != besides:
                    self._happened(queued, event)

    def place(self, uid: str) -> Place | None:
        """Where the pod is; None when it is not in the queue."""
        queued = self._pods.get(uid)
        return None if queued is None else queued.place

    # ------------------------------------------------------------------ one pod at a time

    async def pop(self) -> QueuedPod:
        """The pod to be scheduled next; waits for one."""
        while True:
            self._changed.clear()
            if (queued := self._next()) is not None:
                queued.place = Place.IN_FLIGHT
                queued.meanwhile.clear()
                return queued
            try:
                async with asyncio.timeout(self._idle_seconds()):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, queued: QueuedPod) -> None:
        """The pod was placed: only binding it is left. It comes back by `put_back` if that fails."""
        self._pods.pop(queued.pod.uid, None)

    def put_back(self, queued: QueuedPod, rejected_by: frozenset[str]) -> None:
        """The pod was rejected by plugins, or, with none named, an error came between."""
        queued.since = self._clock()
        queued.rejected_by = rejected_by
        self._pods[queued.pod.uid] = queued
        if not rejected_by:
            queued.errors += 1
            self._move(queued, Place.RECOVERING)
            return
        queued.rejections += 1
        queued.errors = 0
        worth = any(may_help(event, rejected_by) for event in queued.meanwhile)
        self._move(queued, Place.BACKING_OFF if worth else Place.UNSCHEDULABLE)

    # ------------------------------------------------------------------ from place to place

    def _happened(self, queued: QueuedPod, event: Event) -> None:
        if queued.place is Place.IN_FLIGHT:
            queued.meanwhile.append(event)
        elif queued.place is Place.UNSCHEDULABLE and may_help(event, queued.rejected_by):
            self._requeue(queued)

    def _requeue(self, queued: QueuedPod) -> None:
        self._move(queued, Place.BACKING_OFF if queued.ready_at > self._clock() else Place.ACTIVE)

    def _move(self, queued: QueuedPod, place: Place) -> None:
        match place:
            case Place.ACTIVE:
                key = (-float(queued.pod.spec.priority or 0), queued.since)
            case Place.UNSCHEDULABLE:
                key = (queued.since + MAX_UNSCHEDULABLE_SECONDS, 0.0)
            case _:
                key = (queued.ready_at, 0.0)
        queued.place, queued.ticket = place, next(self._tickets)
        heapq.heappush(self._heaps[place], (key, queued.ticket, queued.pod.uid))
        self._changed.set()

    def _first(self, place: Place) -> tuple[QueuedPod, float] | None:
        """The first pod there, and its key."""
        heap = self._heaps[place]
        while heap:
            (key, _), ticket, uid = heap[0]
            queued = self._pods.get(uid)
            if queued is not None and queued.ticket == ticket and queued.place is place:
                return queued, key
            heapq.heappop(heap)
        return None

    def _next(self) -> QueuedPod | None:
        now = self._clock()
        for place in (Place.BACKING_OFF, Place.RECOVERING, Place.UNSCHEDULABLE):
            while (first := self._first(place)) is not None and first[1] <= now:
                self._requeue(first[0])
        found = self._first(Place.ACTIVE) or self._first(Place.BACKING_OFF)
        return None if found is None else found[0]

    def _idle_seconds(self) -> float | None:
        """Until time alone makes a pod ready; None when it does not."""
        due = [first[1] for place in (Place.RECOVERING, Place.UNSCHEDULABLE) if (first := self._first(place))]
        return max(0.0, min(due) - self._clock()) if due else None
