"""The reasons why pods wait, as a word for counting and a sentence for people. See also `egpu.core.explain`."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from egpu.api import names
from egpu.api.allocation import ContainerDemand
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.node_names import NodeNames
from egpu.core.placement.refusal import describe_all
from egpu.core.placement.requests import Request, awaits_placement
from egpu_base.api.kubernetes import Pod
from egpu_base.api.wire import seconds_since
from egpu_base.errors import CorruptData, InvalidInput

MOST_CONTAINERS: Final = 256
"""Containers that are compared with all nodes anew for one list: some hundred milliseconds."""
MOST_KNOWN: Final = 4096
"""Requests whose last answers are kept."""
_TURN: Final = 16
"""Pods that go to the end of the line after each list."""


class Waits(StrEnum):
    """The reason why a pod waits."""

    ROOM = "room"
    """No node has the cards."""
    CLAIM = "claim"
    """Its claim has no cards yet, or is in use."""
    GANG = "gang"
    """Its gang is placed all at once, or not at all."""
    EVICTION = "eviction"
    """Cards are reserved for it on which other pods are ending."""
    GATE = "gate"
    """It has a scheduling gate."""
    SCHEDULER = "scheduler"
    """There are cards: it waits for the scheduler's next try, or for other resources."""
    INVALID = "invalid"
    """Its request is not valid."""


@dataclass(frozen=True, kw_only=True)
class PendingPod:
    """A pod that asks for cards and has no node. `gpus` is its request in cards: per card the larger part of compute
    and memory, by the largest card of the cluster."""

    namespace: str
    name: str
    uid: str
    reason: Waits
    message: str
    seconds: float
    """Seconds since it was created."""
    cards: int
    gpus: float
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class _Asked:
    """The request of a pod, as far as it depends on the pod alone; `problem`: why it is not valid."""

    request: Request | None
    demands: tuple[ContainerDemand, ...] = ()
    text: str = ""
    problem: str = ""

    @property
    def depends(self) -> bool:
        """True if it depends on claims, whose changes are not reported here."""
        return any(demand.claim for demand in self.demands)


class PendingPods:
    """Pods that ask for cards and have no node; each is read when it changes. Not thread-safe."""

    def __init__(self, cache: SchedulerCache) -> None:
        self._cache = cache
        self._pods: dict[str, Pod] = {}
        self._asked: dict[str, _Asked] = {}
        self._looks = _Looks(cache)

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
        """Return them, the longest waiting first."""
        self._looks.begin(nodes)
        found = [one for pod in self._pods.values() if (one := self._pending(pod, self._looks, now)) is not None]
        # The next list begins with other pods, which have waited for an answer.
        for uid in list(self._pods)[:_TURN]:
            self._pods[uid] = self._pods.pop(uid)
        return tuple(sorted(found, key=lambda one: (-one.seconds, one.namespace, one.name)))

    def _pending(self, pod: Pod, looks: "_Looks", now: datetime) -> PendingPod | None:
        """Return a pending pod; None if it asks for no cards after all."""
        asked = self._asks(pod)
        reason, message = Waits.INVALID, asked.problem
        if asked.request is not None:
            if not asked.demands:
                return None
            try:
                reason, message = _why(pod, asked, asked.request, looks)
            except (InvalidInput, CorruptData) as error:
                message = f"its GPU request is not valid: {error}"
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
        return _Asked(None, problem=f"its GPU request is not valid: {error}")
    containers = request.demand.containers
    return _Asked(request, tuple(containers.values()), describe_all(containers))


class _Looks:
    """Checks for room, cached for all pods with equal requests: a Deployment's replicas wait together. Each list may
    check MOST_CONTAINERS containers anew, and a larger pod uses up those of later lists. Meanwhile pods keep their last
    answer."""

    def __init__(self, cache: SchedulerCache) -> None:
        self.cache = cache
        self.nodes: NodeNames = NodeNames(())
        self.largest_mib = 0
        self._left = 0
        self._known: OrderedDict[tuple[str, str], tuple[object, int]] = OrderedDict()

    def begin(self, nodes: NodeNames) -> None:
        """Begin another list."""
        self.nodes = nodes
        self.largest_mib = int(self.cache.ledger.memory_mib.max(initial=0))
        self._left = min(self._left + MOST_CONTAINERS, MOST_CONTAINERS)

    def fitting(self, key: tuple[str, str], asked: "_Asked", request: Request) -> int | None:
        """Return how many nodes have the cards; None if that is not known yet."""
        ledger, containers = self.cache.ledger, len(asked.demands)
        state = object() if asked.depends or request.pooled else (ledger.changes.version, len(self.nodes))
        known = self._known.get(key)
        spent = self._left <= 0
        if known is not None and (known[0] == state or spent):
            return known[1]
        if spent:
            return None
        self._left -= containers
        found = int(self.cache.filter(request, self.nodes).ok.sum())
        self._known[key] = state, found
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return found


def _why(pod: Pod, asked: _Asked, request: Request, looks: _Looks) -> tuple[Waits, str]:
    cache = looks.cache
    if gates := [gate.get("name", "") for gate in pod.spec.scheduling_gates or []]:
        return Waits.GATE, f"it has scheduling gates: {', '.join(gates)}"
    if request.waiting:
        return Waits.CLAIM, request.waiting
    if pod.uid in cache.reservations:
        return Waits.EVICTION, "cards are reserved for it; the pods that hold them are ending"
    gang = cache.gangs.of(pod)
    if gang is not None:
        return Waits.GANG, f"its gang {gang.terms.name} of {gang.terms.size} is placed all at once, or not at all"
    # Claims belong to a namespace; other requests are equal in all namespaces.
    key = pod.namespace if asked.depends else "", pod.annotations[names.DEMAND]
    fitting, nodes = looks.fitting(key, asked, request), len(looks.nodes)
    if fitting is None:
        return Waits.SCHEDULER, f"it is not compared with the nodes yet, as many pods wait ({asked.text})"
    if not fitting:
        return Waits.ROOM, f"none of {nodes} nodes has room for it ({asked.text})"
    return Waits.SCHEDULER, f"{fitting} of {nodes} nodes have room for it ({asked.text})"


def _gpus(demand: ContainerDemand, largest_mib: int) -> float:
    if demand.exclusive:
        return float(demand.cards)
    memory = demand.memory_mib / largest_mib if largest_mib else 0.0
    return demand.cards * min(1.0, max(demand.core / 100, memory, demand.memory_percent / 100))
