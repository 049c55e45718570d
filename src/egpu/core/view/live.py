"""The view of a cluster, kept node by node: the cost of a change does not depend on the size of the cluster."""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from egpu.api.objects import ElasticGPU, ElasticGPUClaim
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.node_names import NodeNames
from egpu.core.view.building import NodeViews
from egpu.core.view.owners import Owners
from egpu.core.view.pending import PendingPods
from egpu.core.view.records import ClusterView, NodeView
from egpu.core.view.slice_usage import SliceKey, SliceUsage
from egpu_base.api.devices import ResourceClaim
from egpu_base.api.kubernetes import Node, Pod

STEP: Final = 25
"""Nodes updated at a time in the background."""


class _State(NamedTuple):
    """The shown state of a node beside its cards."""

    ready: bool = False
    unschedulable: bool = False
    serving: bool | None = None


class LiveView:
    """Receives each change after `cache` did. The ledger reports changes of cards; owners and the rest are recorded
    here. Not thread-safe: its owner holds one lock. A `ClusterView` never changes."""

    def __init__(self, cache: SchedulerCache) -> None:
        self._cache = cache
        self._owners = Owners(cache)
        self._views = NodeViews(cache, self._owners)
        self._pending = PendingPods(cache)
        self._states: dict[str, _State] = {}
        """The states of nodes that have objects."""
        self._phases: dict[str, str] = {}
        """The phases of claims, by UID."""
        self._made: dict[str, NodeView] = {}
        self._names = NodeNames(())
        """All nodes in order, also those of which only the cards are known."""
        self._stale: set[str] = set()
        self._named = False
        """True if `_names` is up to date, except for changes of the ledger."""
        self._version = cache.ledger.changes.version
        self._cards_version = -1

    def node_changed(self, node: Node) -> None:
        pool = self._cache.ledger.pool.get(node.name)
        state = _State(
            ready=any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or []),
            unschedulable=bool(node.spec.unschedulable),
            serving=None if pool is None else pool.serving,
        )
        known = self._states.get(node.name)
        if known != state:
            self._states[node.name] = state
            self._stale.add(node.name)
            self._named = self._named and known is not None

    def node_deleted(self, name: str) -> None:
        if self._states.pop(name, None) is not None:
            self._stale.add(name)
            self._named = False

    def gpu_changed(self, gpu: ElasticGPU) -> None:
        self._owners.gpu_changed(gpu)

    def gpu_deleted(self, name: str) -> None:
        self._owners.gpu_deleted(name)

    def claim_changed(self, claim: ElasticGPUClaim) -> None:
        self._phases[claim.uid] = claim.status.phase or "Pending"
        self._stale.update(self._owners.claim_changed(claim))

    def claim_deleted(self, uid: str) -> None:
        self._phases.pop(uid, None)
        self._owners.claim_deleted(uid)

    def device_claim_changed(self, claim: ResourceClaim) -> None:
        self._stale.update(self._owners.device_claim_changed(claim))

    def device_claim_deleted(self, uid: str) -> None:
        self._stale.update(self._owners.device_claim_deleted(uid))

    def pod_changed(self, pod: Pod) -> None:
        self._pending.pod_changed(pod)
        self._stale.update(self._owners.pod_changed(pod))

    def pod_deleted(self, uid: str) -> None:
        self._pending.pod_deleted(uid)
        self._stale.update(self._owners.pod_deleted(uid))

    def use(self, usage: Mapping[SliceKey, SliceUsage]) -> Generator[None]:
        """Use this usage from now on. Iterating updates all nodes, STEP at a time, and lets other work run."""
        self._views.usage = usage
        for count, name in enumerate(list(self._made)):
            if name in self._made:
                self._made[name] = self._views.used(self._made[name])
                self._made[name].prepare()
            if count % STEP == STEP - 1:
                yield

    def freshen(self) -> Generator[None]:
        """Update changed nodes ahead of the next view, STEP at a time likewise."""
        self._follow_ledger()
        while self._stale:
            for _ in range(min(STEP, len(self._stale))):
                name = self._stale.pop()
                self._make(name)
                if name in self._made:
                    self._made[name].prepare()
            yield

    def view(self, *, now: datetime) -> ClusterView:
        """Return the cluster as it is."""
        self._follow_ledger()
        while self._stale:
            self._make(self._stale.pop())
        return ClusterView(
            nodes=tuple(map(self._made.__getitem__, self._names.names)),
            pending=self._pending.listed(self._names, now=now),
            claims=Counter(self._phases.values()),
            problems=tuple(self._cache.problems()),
            now=now,
        )

    def _follow_ledger(self) -> None:
        """Mark nodes whose rows changed, and update the list of nodes if cards came or went."""
        ledger = self._cache.ledger
        rows: list[int] = ledger.changes.since(self._version).tolist()
        self._version = ledger.changes.version
        self._stale.update(name for row in set(rows) if (name := ledger.names[row]))
        if self._cards_version != ledger.cards_version or not self._named:
            self._cards_version, self._named = ledger.cards_version, True
            self._stale.update(name for name, made in self._made.items() if made.cards and ledger.row(name) is None)
            names = sorted({*self._states, *ledger.nodes()})
            if names != list(self._names.names):
                self._names = NodeNames(names)
                self._stale.update(name for name in names if name not in self._made)

    def _make(self, name: str) -> None:
        state = self._states.get(name)
        if state is None and self._cache.ledger.row(name) is None:
            self._made.pop(name, None)
            return
        state = state or _State()
        self._made[name] = self._views.node(name, ready=state.ready, unschedulable=state.unschedulable)


def cluster_view(
    cache: SchedulerCache,
    *,
    nodes: Iterable[Node],
    pods: Sequence[Pod],
    claims: Sequence[ElasticGPUClaim],
    gpus: Iterable[ElasticGPU],
    usage: Mapping[SliceKey, SliceUsage],
    now: datetime,
    device_claims: Iterable[ResourceClaim] = (),
) -> ClusterView:
    """Return the cluster as it is now, by a cache that was shown these objects. Includes nodes of which only the cards
    are known (an agent may be quicker than a list), not slices of missing cards. Changes nothing."""
    live = LiveView(cache)
    for node in nodes:
        live.node_changed(node)
    for gpu in gpus:
        live.gpu_changed(gpu)
    for claim in claims:
        live.claim_changed(claim)
    for one in device_claims:
        live.device_claim_changed(one)
    for pod in pods:
        live.pod_changed(pod)
    for _ in live.use(usage):
        pass
    return live.view(now=now)
