"""The queue of waiting pods, with kube-scheduler's rules for looking at a pod again.

    active          looked at next: higher priority first, then the longest waiting
    backing off     rejected, and a change may help: looked at after a second, then two, four … ten, or at once when
                    nothing else is active; after an error always after that time
    unschedulable   rejected, and no change since: looked at after one, and after five minutes anyway

`egpu_sim.cluster.scheduler.events` says which change may help. A pod that is being scheduled is in none of the three.
Changes meanwhile are kept, and count if it is rejected.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from egpu_base.api.kubernetes import Pod
from egpu_sim.cluster.scheduler.events import Event, may_help, waiting_pod_events

INITIAL_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 10.0
MAX_UNSCHEDULABLE_SECONDS = 300.0


class Place(Enum):
    """The part of the queue that a pod is in."""

    ACTIVE = auto()
    BACKING_OFF = auto()
    RECOVERING = auto()
    """Backing off after an error."""
    UNSCHEDULABLE = auto()
    IN_FLIGHT = auto()


@dataclass
class QueuedPod:
    """A pod in the queue. `rejected_by` names plugins; it is empty after an error, which no change of the cluster
    mends."""

    pod: Pod
    since: float
    place: Place = Place.IN_FLIGHT
    ticket: int = 0
    """Number of its newest entry in a heap: older ones are stale."""
    rejected_by: frozenset[str] = frozenset()
    rejections: int = 0
    errors: int = 0
    meanwhile: list[Event] = field(default_factory=list[Event])

    @property
    def ready_at(self) -> float:
        """The end of its backoff, on the queue's clock."""
        return self.since + backoff_seconds(self.errors or self.rejections)


def backoff_seconds(attempts: int) -> float:
    """Return the backoff after so many attempts: 0, 1, 2, 4, 8, 10, 10 and so on."""
    return min(MAX_BACKOFF_SECONDS, INITIAL_BACKOFF_SECONDS * 2.0 ** min(attempts - 1, 10)) if attempts else 0.0


class SchedulingQueue:
    """`pop` returns the next pod, which ends with `done` or `put_back`. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pods: dict[str, QueuedPod] = {}
        self._heaps: dict[Place, list[tuple[tuple[float, float], int, str]]] = {place: [] for place in Place}
        self._tickets = itertools.count(1)
        self._changed = asyncio.Event()

    # ------------------------------------------------------------------ pods that come, change and go

    def offer(self, old: Pod | None, pod: Pod) -> None:
        """Add a pod that waits for a node, or note its change."""
        known = self._pods.get(pod.uid)
        if known is None:
            known = self._pods[pod.uid] = QueuedPod(pod, self._clock())
            self._move(known, Place.ACTIVE)
            return
        known.pod = pod
        for event in waiting_pod_events(old, pod) if old is not None else ():
            self._happened(known, event)

    def drop(self, uid: str) -> None:
        """Remove a pod that was bound or deleted, or is no longer this scheduler's."""
        self._pods.pop(uid, None)

    def happened(
        self, events: Iterable[Event], *, besides: str = "", concerns: Callable[[Pod], bool] = lambda _: True
    ) -> None:
        """Requeue the pods that changes of the cluster may help. `besides`: the UID of a pod that they do not
        concern; `concerns`: which of the others."""
        for event in events:
            for queued in self._pods.values():
                if queued.pod.uid != besides and concerns(queued.pod):
                    self._happened(queued, event)

    def place(self, uid: str) -> Place | None:
        """Return the pod's part of the queue; None when it is not in the queue."""
        queued = self._pods.get(uid)
        return None if queued is None else queued.place

    # ------------------------------------------------------------------ one pod at a time

    async def pop(self) -> QueuedPod:
        """Wait for the next pod to schedule, and return it."""
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
        """Remove a placed pod. `put_back` returns it if its binding fails."""
        self._pods.pop(queued.pod.uid, None)

    def put_back(self, queued: QueuedPod, rejected_by: frozenset[str]) -> None:
        """Return a pod that plugins rejected, or, with none named, that an error stopped."""
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
        """Return the seconds until time alone makes a pod ready; None if it never does."""
        due = [first[1] for place in (Place.RECOVERING, Place.UNSCHEDULABLE) if (first := self._first(place))]
        return max(0.0, min(due) - self._clock()) if due else None
