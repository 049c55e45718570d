"""Why a pod waits, in a word for counting and in a sentence for people. The whole answer is `egpu.core.explain`'s."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from egpu.api import names
from egpu.api.allocation import ContainerDemand
from egpu.api.kubernetes import Pod
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.refusal import describe
from egpu.core.placement.requests import Request, awaits_placement
from egpu.errors import CorruptData, InvalidInput


class Waits(StrEnum):
    """For what a pod waits."""

    ROOM = "room"
    """No node has the cards."""
    CLAIM = "claim"
    """For a claim that has no cards yet, or is used."""
    GANG = "gang"
    """Its gang is placed all at once, or not at all."""
    EVICTION = "eviction"
    """Cards are kept for it on which others are ending."""
    GATE = "gate"
    """Somebody has put a scheduling gate on it."""
    SCHEDULER = "scheduler"
    """There are cards: for the scheduler's next look, or for what else than cards it asks."""
    INVALID = "invalid"
    """What it asks for is not possible."""


@dataclass(frozen=True, kw_only=True)
class PendingPod:
    """A pod that asks for cards and has no node. `gpus` is what it asks for in cards: of each, the larger part of
    compute and memory, by the largest card of the cluster."""

    namespace: str
    name: str
    uid: str
    reason: Waits
    message: str
    seconds: float
    """Since it was made."""
    cards: int
    gpus: float
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


def pending_pods(
    cache: SchedulerCache, pods: Iterable[Pod], nodes: Sequence[str], *, now: datetime
) -> tuple[PendingPod, ...]:
    """The pods that ask for cards and have no node, the longest waiting first. Changes nothing."""
    largest = max((card.memory_mib for node in cache.ledger.nodes() for card in cache.ledger.cards(node)), default=0)
    looks = _Looks(cache, nodes)
    found = [one for pod in pods if awaits_placement(pod) and (one := _pending(pod, looks, largest, now)) is not None]
    return tuple(sorted(found, key=lambda one: (-one.seconds, one.namespace, one.name)))


def seconds_since(timestamp: str | None, now: datetime) -> float:
    """Seconds from an RFC 3339 timestamp to `now`, never below 0; 0 where there is none."""
    if not timestamp:
        return 0.0
    return max(0.0, (now - datetime.fromisoformat(timestamp)).total_seconds())


class _Looks:
    """Looks for room, one for all pods that ask alike: a Deployment's replicas wait together."""

    def __init__(self, cache: SchedulerCache, nodes: Sequence[str]) -> None:
        self.cache = cache
        self._nodes = nodes
        self._fitting: dict[tuple[str, str], int] = {}

    def fitting(self, pod: Pod, request: Request) -> int:
        """How many nodes have the cards."""
        key = pod.namespace, pod.annotations[names.DEMAND]
        if key not in self._fitting:
            self._fitting[key] = len(self.cache.filter(request, self._nodes).fits)
        return self._fitting[key]

    @property
    def nodes(self) -> int:
        return len(self._nodes)


def _pending(pod: Pod, looks: _Looks, largest_mib: int, now: datetime) -> PendingPod | None:
    """None: it asks for no cards after all."""
    try:
        request = looks.cache.request(pod)
        demands = list(request.demand.containers.values())
        if not demands:
            return None
        reason, message = _why(pod, request, looks)
    except (InvalidInput, CorruptData) as error:
        demands, reason, message = [], Waits.INVALID, f"what it asks for is not possible: {error}"
    return PendingPod(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        reason=reason,
        message=message,
        seconds=seconds_since(pod.metadata.creation_timestamp, now),
        cards=sum(demand.cards for demand in demands),
        gpus=sum(_gpus(demand, largest_mib) for demand in demands),
        labels=pod.metadata.labels or {},
    )


def _why(pod: Pod, request: Request, looks: _Looks) -> tuple[Waits, str]:
    cache = looks.cache
    if gates := [gate.get("name", "") for gate in pod.spec.scheduling_gates or []]:
        return Waits.GATE, f"its scheduling gates are not removed: {', '.join(gates)}"
    if request.waiting:
        return Waits.CLAIM, request.waiting
    if pod.uid in cache.reservations:
        return Waits.EVICTION, "cards are kept for it; those who have them are ending"
    gang = cache.gangs.of(pod)
    if gang is not None:
        return Waits.GANG, f"its gang {gang.terms.name} of {gang.terms.size} is placed all at once, or not at all"
    asked = "; ".join(f"{name} {describe(demand)}" for name, demand in request.demand.containers.items())
    fitting = looks.fitting(pod, request)
    if not fitting:
        return Waits.ROOM, f"none of {looks.nodes} nodes has room for it ({asked})"
    return Waits.SCHEDULER, f"{fitting} of {looks.nodes} nodes have room for it ({asked})"


def _gpus(demand: ContainerDemand, largest_mib: int) -> float:
    if demand.exclusive:
        return float(demand.cards)
    memory = demand.memory_mib / largest_mib if largest_mib else 0.0
    return demand.cards * min(1.0, max(demand.core / 100, memory, demand.memory_percent / 100))
