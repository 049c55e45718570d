"""Whom to evict for a waiting pod, by card, and which cards it then gets: the cheapest set that makes room, breaks no
PodDisruptionBudget, and lets the pod in by everything else that can be told (CPU, memory, taints, selectors).

kube-scheduler looks for victims by the sums of a node. Where a node has room in sum but on no card, it finds nobody.

A pod is looked for node by node, and there by the sets of cards that it could be on: whoever holds none of them need
not go. A gang is placed whole or not at all, wherever it may be, and a pod of the pool likewise.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from egpu.api.allocation import PodAllocation
from egpu.api.kubernetes import Node, Pod, PodDisruptionBudget
from egpu.core.gangs.membership import Gang
from egpu.core.gangs.placing import place_gang
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.reservations import priority
from egpu.core.placement.usage import CardKey, card_usage
from egpu.core.policies.registry import Policies
from egpu.core.preemption.budgets import Budgets
from egpu.core.preemption.search import cheapest
from egpu.core.preemption.sums import Sums, only_the_scheduler_can_tell
from egpu.core.preemption.victims import Cost, Unit, cost_of, is_placed, units_below
from egpu.errors import CorruptData, InvalidInput, MissingExtra

NEVER: Final = "Never"
MOST_NODES: Final = 100
"""Nodes looked at for one pod at each priority; kube-scheduler, too, looks at 100 or a tenth."""
MOST_SETS: Final = 128
"""Sets of cards of one node; with more, its pods are looked at all together."""
MOST_UNITS: Final = 64
"""Victims looked at together where nodes cannot be looked at one by one: the cheapest."""


@dataclass(frozen=True)
class Scene:
    """The cluster, as a plan looks at it. `pods`: all of them."""

    cache: SchedulerCache
    nodes: Mapping[str, Node]
    pods: Iterable[Pod]
    budgets: Iterable[PodDisruptionBudget]
    policies: Policies


@dataclass(frozen=True)
class Plan:
    """`allocations` by UID of the pod, and of the members of its gang that wait with it (`pods`). `victims` may be
    empty: then enough pods are about to end already."""

    pods: tuple[Pod, ...]
    allocations: Mapping[str, PodAllocation]
    victims: tuple[Pod, ...]


@dataclass(frozen=True)
class InVain:
    """Why nobody is evicted for a pod."""

    reason: str


def plan(pod: Pod, scene: Scene) -> Plan | InVain:
    """For `pod`, and the waiting members of its gang. Changes nothing."""
    cache = scene.cache
    try:
        gang = cache.gangs.of(pod)
        waiting = cache.request(pod).waiting
    except (InvalidInput, CorruptData) as error:
        return InVain(str(error))
    if gang is not None and (problem := gang.problem()):
        return InVain(problem)
    pods = gang.waiting if gang is not None else (pod,)
    for one in pods:
        if one.spec.preemption_policy == NEVER:
            return InVain("its preemptionPolicy is Never")
        if what := only_the_scheduler_can_tell(one):
            return InVain(f"{what} cannot be checked beforehand, and nobody is evicted on a guess")
    with ExitStack() as thought:
        thought.enter_context(cache.ranking.supposing())
        thought.enter_context(cache.reservations.lifted(pod))
        try:
            return _Search(pod, gang, pods, scene, thought).run()
        except (InvalidInput, CorruptData, MissingExtra) as error:
            return InVain(str(error) or waiting)


def card_names(allocation: PodAllocation) -> str:
    """Which cards, for people: "card UUID of node NODE"; of the pool, with the nodes that have them."""
    by_node: dict[str, list[str]] = {}
    for key in sorted(card_usage(allocation)):
        by_node.setdefault(key.node, []).append(key.uuid)
    some = [f"card{'s' if len(uuids) > 1 else ''} {', '.join(uuids)} of node {node}" for node, uuids in by_node.items()]
    return " and ".join(some)


@dataclass(frozen=True)
class _Found:
    cost: Cost
    victims: tuple[Unit, ...]
    allocations: Mapping[str, PodAllocation]


class _Search:
    """One pod or gang, in a ledger that shows what it may see."""

    def __init__(self, pod: Pod, gang: Gang | None, pods: Sequence[Pod], scene: Scene, thought: ExitStack) -> None:
        self._pod = pod
        self._gang = gang
        self._pods = tuple(pods)
        self._cache = scene.cache
        self._policies = scene.policies
        self._thought = thought
        self._known = list(scene.pods)
        self._budgets = Budgets(scene.budgets)
        self._sums = Sums(scene.nodes, self._known)
        self._nodes = sorted(scene.nodes)
        self._gone: frozenset[str] = frozenset()

    def run(self) -> Plan | InVain:
        if self._places(self._nodes):
            return InVain("there is room for it; the scheduler has to ask again")
        leaving = [pod.uid for pod in self._known if is_placed(pod) and pod.metadata.deletion_timestamp is not None]
        self._thought.enter_context(self._cache.without(leaving))
        self._gone = frozenset(leaving)
        if places := self._places(self._nodes):
            return Plan(self._pods, places, ())
        staying = [pod for pod in self._known if pod.metadata.deletion_timestamp is None and not self._is_own(pod)]
        units = units_below(min(map(priority, self._pods)), staying, self._cache, self._budgets)
        if not units:
            return InVain("no pod of lower priority has cards")
        allowed = [unit for unit in units if self._budgets.allow(unit.charges)]
        for level in sorted({unit.cost.highest for unit in allowed}):
            found = self._best([unit for unit in allowed if unit.cost.highest <= level])
            if found is not None:
                victims = tuple(pod for unit in found.victims for pod in unit.pods)
                return Plan(self._pods, found.allocations, victims)
        return self._in_vain(units)

    def _is_own(self, pod: Pod) -> bool:
        return self._gang is not None and any(pod.uid == member.uid for member in self._gang.bound)

    def _in_vain(self, units: Sequence[Unit]) -> InVain:
        everybody = [pod for unit in units for pod in unit.pods]
        if not self._room_without(units, self._nodes):
            return InVain(f"there would be no room with all {len(everybody)} pods of lower priority gone")
        broken = ", ".join(self._budgets.broken_by(everybody))
        return InVain(f"it would break PodDisruptionBudgets: {broken}" if broken else "too many pods would have to go")

    # --- the search -------------------------------------------------------------------------------------------------

    def _best(self, units: Sequence[Unit]) -> _Found | None:
        request = self._cache.request(self._pod)
        if self._gang is not None or request.pooled:
            return self._cheapest(units[:MOST_UNITS], self._nodes, None)
        best: _Found | None = None
        having = [node for node in self._nodes if any(node in unit.nodes for unit in units)]
        for node in having[:MOST_NODES]:
            there = [unit for unit in units if node in unit.nodes]
            if not self._room_without(there, [node]):
                continue
            for group in self._groups(node, there):
                best = self._cheapest(group, [node], best) or best
        return best

    def _groups(self, node: str, units: Sequence[Unit]) -> Iterator[Sequence[Unit]]:
        """Units of which a cheapest set is looked for: those on each set of cards that the pod could be on; all, where
        something else than cards is short."""
        request = self._cache.request(self._pod)
        asked = [demand.cards for demand in request.local.values()]
        uuids = [card.uuid for card in self._cache.ledger.cards(node)]
        sizes = range(max(asked, default=0), min(sum(asked), len(uuids)) + 1)
        sets = [chosen for size in sizes for chosen in combinations(uuids, size)] if asked else []
        if request.waiting or request.bound or not 0 < len(sets) <= MOST_SETS or self._is_short(node):
            yield units
            return
        seen: set[tuple[int, ...]] = set()
        for chosen in sets:
            keys = {CardKey(node, uuid) for uuid in chosen}
            group = tuple(at for at, unit in enumerate(units) if unit.cards & keys)
            if group not in seen:
                seen.add(group)
                yield [units[at] for at in group]

    def _is_short(self, node: str) -> bool:
        """Whether the node lacks something else than cards."""
        request, free = self._cache.request(self._pod), self._cache.hosts.free(node)
        if free.cpu_milli < request.cpu_milli or free.ram_mib < request.ram_mib:
            return True
        anywhere = {self._pod.uid: PodAllocation(node=node, containers={})}
        return not self._sums.take([self._pod], anywhere, gone=self._gone)

    def _cheapest(self, units: Sequence[Unit], nodes: Sequence[str], best: _Found | None) -> _Found | None:
        """Among `units`, if better than `best`."""
        below = best.cost if best is not None else None
        chosen = cheapest(units, lambda some: bool(self._room_without(some, nodes)), self._budgets, below=below)
        if chosen is None:
            return None
        return _Found(cost_of(chosen), chosen, self._room_without(chosen, nodes))

    def _room_without(self, units: Sequence[Unit], nodes: Sequence[str]) -> dict[str, PodAllocation]:
        """Where the pods go with these gone, too."""
        uids = frozenset(pod.uid for unit in units for pod in unit.pods)
        before, self._gone = self._gone, self._gone | uids
        try:
            with self._cache.without(uids):
                return self._places(nodes)
        finally:
            self._gone = before

    def _places(self, nodes: Sequence[str]) -> dict[str, PodAllocation]:
        """Where the pods go now, on `nodes`; empty where there is no room for all."""
        cache = self._cache
        if self._gang is not None:
            found = place_gang(cache, self._gang, self._policies, pod=self._pod, nodes=nodes, elsewhere=nodes)
            places = found.allocations
            return places if places and self._sums.take(self._pods, places, gone=self._gone) else {}
        request = cache.request(self._pod)
        for node in cache.filter(request, nodes).fits:
            free, blank = cache.hosts.free(node), {self._pod.uid: PodAllocation(node=node, containers={})}
            roomy = free.cpu_milli >= request.cpu_milli and free.ram_mib >= request.ram_mib
            if roomy and self._sums.take([self._pod], blank, gone=self._gone):
                return {self._pod.uid: cache.ranking.choose(request, node, self._policies)}
        return {}
