"""Why a pod waits, in a word for counting and in a sentence for people. The whole answer is `egpu.core.explain`'s."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from egpu.api import names
from egpu.api.allocation import ContainerDemand
from egpu.api.kubernetes import Pod
from egpu.api.wire import seconds_since
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.node_names import NodeNames
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


@dataclass(frozen=True)
class _Asked:
    """What a pod asks for, as far as nobody but itself can change it; `problem`: why it cannot be had."""

    request: Request | None
    demands: tuple[ContainerDemand, ...] = ()
    text: str = ""
    problem: str = ""

    @property
    def depends(self) -> bool:
        """Whether it depends on claims, of which the pod does not hear."""
        return any(demand.claim for demand in self.demands)


class PendingPods:
    """Pods that ask for cards and have no node; each is read when it changes. Not thread-safe."""

    def __init__(self, cache: SchedulerCache) -> None:
        self._cache = cache
        self._pods: dict[str, Pod] = {}
        self._asked: dict[str, _Asked] = {}

    def pod_changed(self, pod: Pod) -> None:
        self._asked.pop(pod.uid, None)
        if awaits_placement(pod):
            self._pods[pod.uid] = pod
        else:
            self._pods.pop(pod.uid, None)

    def pod_deleted(self, uid: str) -> None:
        self._asked.pop(uid, None)
        self._pods.pop(uid, None)

    def listed(self, nodes: NodeNames, *, now: datetime) -> tuple[PendingPod, ...]:
        """They, the longest waiting first. Changes nothing."""
        looks = _Looks(self._cache, nodes)
        found = [one for pod in self._pods.values() if (one := self._pending(pod, looks, now)) is not None]
        return tuple(sorted(found, key=lambda one: (-one.seconds, one.namespace, one.name)))

    def _pending(self, pod: Pod, looks: "_Looks", now: datetime) -> PendingPod | None:
        """None: it asks for no cards after all."""
        asked = self._asks(pod)
        reason, message = Waits.INVALID, asked.problem
        if asked.request is not None:
            if not asked.demands:
                return None
            try:
                reason, message = _why(pod, asked, asked.request, looks)
            except (InvalidInput, CorruptData) as error:
                message = f"what it asks for is not possible: {error}"
        return PendingPod(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            reason=reason,
            message=message,
            seconds=seconds_since(pod.metadata.creation_timestamp, now),
            cards=sum(demand.cards for demand in asked.demands),
            gpus=sum(_gpus(demand, looks.largest_mib) for demand in asked.demands),
            labels=pod.metadata.labels or {},
        )

    def _asks(self, pod: Pod) -> _Asked:
        known = self._asked.get(pod.uid)
        if known is None:
            known = _asked(pod, self._cache)
            if not known.depends:
                self._asked[pod.uid] = known
        return known


def _asked(pod: Pod, cache: SchedulerCache) -> _Asked:
    try:
        request = cache.request(pod)
    except (InvalidInput, CorruptData) as error:
        return _Asked(None, problem=f"what it asks for is not possible: {error}")
    containers = request.demand.containers
    text = "; ".join(f"{name} {describe(demand)}" for name, demand in containers.items())
    return _Asked(request, tuple(containers.values()), text)


class _Looks:
    """Looks for room, one for all pods that ask alike: a Deployment's replicas wait together."""

    def __init__(self, cache: SchedulerCache, nodes: NodeNames) -> None:
        self.cache = cache
        self.nodes = nodes
        self.largest_mib = int(cache.ledger.memory_mib.max(initial=0))
        self._fitting: dict[tuple[str, str], int] = {}

    def fitting(self, namespace: str, demand: str, request: Request) -> int:
        """How many nodes have the cards."""
        key = namespace, demand
        if key not in self._fitting:
            self._fitting[key] = int(self.cache.filter(request, self.nodes).ok.sum())
        return self._fitting[key]


def _why(pod: Pod, asked: _Asked, request: Request, looks: _Looks) -> tuple[Waits, str]:
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
    # Names of claims are of a namespace; what else is asked for is so in all of them.
    fitting = looks.fitting(pod.namespace if asked.depends else "", pod.annotations[names.DEMAND], request)
    nodes = len(looks.nodes)
    if not fitting:
        return Waits.ROOM, f"none of {nodes} nodes has room for it ({asked.text})"
    return Waits.SCHEDULER, f"{fitting} of {nodes} nodes have room for it ({asked.text})"


def _gpus(demand: ContainerDemand, largest_mib: int) -> float:
    if demand.exclusive:
        return float(demand.cards)
    memory = demand.memory_mib / largest_mib if largest_mib else 0.0
    return demand.cards * min(1.0, max(demand.core / 100, memory, demand.memory_percent / 100))
