"""New nodes that would let a waiting pod start, and whether an autoscaler would add one by itself. Pure.

A new node is like one that the cluster has: same cards, capacity, labels and taints, and empty. A pod is placed with
its waiting gang, one after the other, and a further node comes whenever no node has room.

Autoscalers add up what a node's pods ask for, and know no cards. So they add no node for a pod that some node would
take by its sums, though no card of it has enough left.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass, ElasticGPUStatus
from egpu.core.growth import Growth, Help
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu.core.placement.ledger import Holder
from egpu.core.placement.node_filters import rejection
from egpu.core.placement.published import is_card
from egpu.core.policies.registry import Policies
from egpu.core.preemption.objections import objections
from egpu.core.preemption.population import Population
from egpu.core.preemption.sums import Sums
from egpu_base.api.kubernetes import Node, NodeSpec, Pod, Taint
from egpu_base.api.objects import Condition
from egpu_base.api.resources import Amounts, effective_requests
from egpu_base.errors import InvalidInput, MissingExtra

MOST_NEW: Final = 64
"""Nodes for one gang. A larger need is one for a person."""
MOST_KINDS: Final = 32
"""Different nodes of one cluster that are tried."""
HOSTNAME: Final = "kubernetes.io/hostname"
_OF_KUBERNETES: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints that say how a node is at this moment."""


@dataclass(frozen=True)
class Stock:
    """The objects of a cluster, from which caches are made."""

    nodes: Sequence[Node]
    gpus: Sequence[ElasticGPU]
    classes: Sequence[ElasticGPUClass]
    claims: Sequence[ElasticGPUClaim]
    pods: Sequence[Pod]


def growth(pod: Pod, stock: Stock, policies: Policies) -> Growth:
    """Return what new nodes would change for a waiting pod."""
    nodes = {node.name: node for node in stock.nodes}
    return Growth(helping(pod, stock, policies), room_by_sums(pod, nodes, Population.of(stock.pods)))


def helping(pod: Pod, stock: Stock, policies: Policies) -> tuple[Help, ...]:
    """Return which new nodes help a waiting pod, the fewest first, one for each set of cards; empty if no kind of node
    of this cluster does."""
    by_node: dict[str, list[ElasticGPU]] = {}
    for gpu in stock.gpus:
        if is_card(gpu):
            by_node.setdefault(gpu.spec.node_name, []).append(gpu)
    found: dict[tuple[tuple[str, int], ...], Help] = {}
    for node in _kinds(stock.nodes, by_node):
        cards = _cards(by_node[node.name])
        count = _needed(pod, node, by_node[node.name], stock, policies)
        if count and (cards not in found or count < found[cards].count):
            found[cards] = Help(node.name, count, cards)
    return tuple(sorted(found.values(), key=lambda one: (one.count, len(one.cards), one.like)))


def room_by_sums(pod: Pod, nodes: Mapping[str, Node], pods: Population) -> tuple[str, ...]:
    """Return the nodes that an autoscaler would expect to take the pod: by what their pods ask for, cards aside."""
    against = objections(pod, nodes, Sums(nodes, pods))
    return tuple(name for name in sorted(nodes) if name not in against)


def _kinds(nodes: Iterable[Node], by_node: Mapping[str, Sequence[ElasticGPU]]) -> Iterator[Node]:
    """Yield one GPU node of each kind, by name."""
    seen: list[tuple[object, ...]] = []
    for node in sorted(nodes, key=lambda one: one.name):
        if node.name not in by_node or len(seen) >= MOST_KINDS:
            continue
        labels = {key: value for key, value in (node.metadata.labels or {}).items() if key != HOSTNAME}
        kind = (_cards(by_node[node.name]), labels, _lasting_taints(node), node.status.allocatable)
        if kind not in seen:
            seen.append(kind)
            yield node


def _cards(gpus: Iterable[ElasticGPU]) -> tuple[tuple[str, int], ...]:
    cards = [gpu.spec.physical_gpu for gpu in gpus]
    return tuple(sorted((one.model, one.memory_mib) for one in cards if one is not None))


def _needed(pod: Pod, like: Node, gpus: Sequence[ElasticGPU], stock: Stock, policies: Policies) -> int:
    """Return how many new nodes the pod needs with its waiting gang; 0 if these nodes do not help."""
    cache = rebuild(stock.gpus, stock.pods, stock.claims, stock.classes, stock.nodes)
    growing = _Growing(cache, {node.name: node for node in stock.nodes}, Population.of(stock.pods), policies)
    try:
        gang = cache.gangs.of(pod)
        for member in gang.waiting if gang is not None else (pod,):
            if growing.place(member):
                continue
            if growing.added >= MOST_NEW:
                return 0
            growing.add(like, gpus)
            if not growing.place(member):
                return 0
    except (InvalidInput, MissingExtra):
        return 0  # the pod says something that no node mends
    return growing.added


class _Growing:
    """A cluster of one's own, which gets pods and nodes."""

    def __init__(self, cache: SchedulerCache, nodes: dict[str, Node], pods: Population, policies: Policies) -> None:
        self._cache, self._nodes, self._policies = cache, nodes, policies
        self._sums = Sums(nodes, pods)
        self._used: dict[str, Amounts] = {}
        self.added = 0

    def add(self, like: Node, gpus: Iterable[ElasticGPU]) -> None:
        """Add an empty node."""
        self.added += 1
        node = _fresh(like, f"{like.name}-new-{self.added}")
        self._nodes[node.name] = node
        self._cache.node_changed(node)
        self._cache.gpu_changed(*_fresh_cards(gpus, node.name, self.added))

    def place(self, pod: Pod) -> bool:
        """Place the pod if a node has room."""
        asked = effective_requests(pod)
        open_to_it = [
            name
            for name, node in self._nodes.items()
            if rejection(pod, node, requests=asked, used=self._on(name)) is None
            and not self._sums.objection(pod, name, gone=())
        ]
        request = self._cache.request(pod)
        if request.waiting:
            return False
        fits = self._cache.filter(request, open_to_it).fits
        if not fits:
            return False
        scores = self._cache.ranking.scores(request, fits, self._policies, all_fit=True)
        best = max(fits, key=lambda name: (scores[name], name))
        allocation = self._cache.ranking.choose(request, best, self._policies)
        self._cache.ledger.hold(Holder("pod", pod.uid), self._cache.held_by_pod(pod.namespace, allocation))
        used = self._on(best)
        for name, amount in asked.items():
            used[name] = used.get(name, 0) + amount
        return True

    def _on(self, node: str) -> Amounts:
        if node not in self._used:
            self._used[node] = self._sums.used(node)
        return self._used[node]


def _fresh(like: Node, name: str) -> Node:
    """Return a new node of the same kind: ready, and open to pods."""
    labels = {**(like.metadata.labels or {}), HOSTNAME: name}
    return replace(
        like,
        metadata=replace(like.metadata, name=name, uid=name, labels=labels),
        spec=NodeSpec(taints=_lasting_taints(like)),
        status=replace(like.status, conditions=[Condition(type="Ready", status="True")]),
    )


def _lasting_taints(node: Node) -> list[Taint]:
    return [taint for taint in node.spec.taints or () if not taint.key.startswith(_OF_KUBERNETES)]


def _fresh_cards(gpus: Iterable[ElasticGPU], node: str, number: int) -> Iterator[ElasticGPU]:
    """Yield healthy cards like these, which know their links to each other."""
    for gpu in gpus:
        card = gpu.spec.physical_gpu
        assert card is not None
        links = [replace(link, uuid=f"{link.uuid}-{number}") for link in card.links]
        physical = replace(card, uuid=f"{card.uuid}-{number}", links=links)
        yield replace(
            gpu,
            metadata=replace(gpu.metadata, name=f"{gpu.name}-{number}", deletion_timestamp=None),
            spec=replace(gpu.spec, node_name=node, physical_gpu=physical, unschedulable=False),
            status=ElasticGPUStatus(phase="Available", healthy=True),
        )
