"""Whom to evict for a waiting pod, by card, and which cards it then gets: the cheapest set that makes room, breaks no
PodDisruptionBudget, and lets the pod in by everything else that can be told (CPU, memory, taints, selectors).

kube-scheduler looks for victims by the sums of a node. Where a node has room in sum but on no card, it finds nobody.

A pod is looked for node by node, and there by the sets of cards that it could be on: whoever holds none of them need
not go. A gang is placed whole or not at all, wherever it may be, and a pod of the pool likewise.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from egpu.api.allocation import PodAllocation
from egpu.api.disruption import PodDisruptionBudget
from egpu.api.kubernetes import Node, Pod
from egpu.core.gangs.membership import Gang
from egpu.core.gangs.placing import place_gang
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.reservations import priority
from egpu.core.placement.usage import CardKey, card_usage
from egpu.core.policies.registry import Policies
from egpu.core.preemption.budgets import Budgets
from egpu.core.preemption.outlook import Outlook
from egpu.core.preemption.search import TRIALS, cheapest
from egpu.core.preemption.sums import Sums, only_the_scheduler_can_tell
from egpu.core.preemption.victims import Cost, Unit, cost_of, is_placed, units_below
from egpu.errors import CorruptData, InvalidInput, MissingExtra

NEVER: Final = "Never"
MOST_NODES: Final = 32
"""Nodes looked at closely for one pod, those with most pods that may go; kube-scheduler, too, looks at a part only."""
MOST_SETS: Final = 128
"""Sets of cards of one node; with more, its pods are looked at all together."""
MOST_UNITS: Final = 64
"""Victims looked at together where nodes cannot be looked at one by one: the least important."""
SMALL: Final = 8
FEW_TRIALS: Final = 32
"""Sets tried there of more units than SMALL: each trial is a look at the whole cluster."""


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
        self._node_names = frozenset(self._nodes)
        self._gone: frozenset[str] = frozenset()
        self._lower: dict[str, list[Pod]] = {}
        """By node: pods of lower priority that stay if they are left alone."""
        self._units_on: dict[str, list[Unit]] = {}
        self._outlooks: dict[str, Outlook] = {}
        self._promise: list[str] | None = None
        self._jointly = gang is not None or bool(self._cache.request(pod).pooled)
        """Whether all nodes have to be looked at together."""

    def run(self) -> Plan | InVain:
        if self._places(self._nodes):
            return InVain("there is room for it; the scheduler has to ask again")
        leaving = [pod.uid for pod in self._known if is_placed(pod) and pod.metadata.deletion_timestamp is not None]
        self._thought.enter_context(self._cache.without(leaving))
        self._gone = frozenset(leaving)
        if places := self._places(self._nodes):
            return Plan(self._pods, places, ())
        self._find_lower()
        if not self._lower:
            return InVain("no pod of lower priority has cards")
        for level in sorted({priority(pod) for pods in self._lower.values() for pod in pods}):
            found = self._best(level)
            if found is not None:
                victims = tuple(pod for unit in found.victims for pod in unit.pods)
                return Plan(self._pods, found.allocations, victims)
        return self._in_vain()

    # --- who may go -------------------------------------------------------------------------------------------------

    def _find_lower(self) -> None:
        limit = min(map(priority, self._pods))
        own = {member.uid for member in self._gang.bound} if self._gang is not None else set[str]()
        for pod in self._known:
            stays = is_placed(pod) and pod.metadata.deletion_timestamp is None
            if stays and priority(pod) < limit and pod.uid not in own:
                self._lower.setdefault(pod.spec.node_name, []).append(pod)

    def _units(self, node: str) -> list[Unit]:
        """Who may go from the node, budgets aside."""
        if node not in self._units_on:
            limit = min(map(priority, self._pods))
            self._units_on[node] = units_below(limit, self._lower.get(node, ()), self._cache, self._budgets)
        return self._units_on[node]

    def _allowed(self, node: str, level: int) -> list[Unit]:
        """Of these, who breaks no budget by themselves and is not more important than `level`."""
        return [one for one in self._units(node) if one.cost.highest <= level and self._budgets.allow(one.charges)]

    def _in_vain(self) -> InVain:
        lower = [pod for pods in self._lower.values() for pod in pods]
        if self._jointly:
            helps = self._is_room_without(self._all_units(lower), self._nodes)
        else:
            helps = any(self._is_room_without(self._units(node), [node]) for node in self._promising())
        if not helps:
            return InVain(f"there would be no room with all {len(lower)} pods of lower priority gone")
        broken = ", ".join(self._budgets.broken_by(lower))
        return InVain(f"it would break PodDisruptionBudgets: {broken}" if broken else "too many pods would have to go")

    def _all_units(self, pods: Sequence[Pod]) -> list[Unit]:
        """The units of the least important of `pods`, as many as can be looked at together."""
        some = sorted(pods, key=lambda pod: (priority(pod), pod.uid))[:MOST_UNITS]
        return units_below(min(map(priority, self._pods)), some, self._cache, self._budgets)

    # --- the search -------------------------------------------------------------------------------------------------

    def _promising(self) -> list[str]:
        """Nodes where there may be room with everybody gone who may go, those with most of them first."""
        if self._promise is None:
            found: list[str] = []
            for node in sorted(self._lower, key=lambda node: (-len(self._lower[node]), node)):
                uids = {pod.uid for unit in self._units(node) for pod in unit.pods}
                if node in self._node_names and self._outlook(node).may_help(uids):
                    found.append(node)
                if len(found) == MOST_NODES:
                    break
            self._promise = found
        return self._promise

    def _outlook(self, node: str) -> Outlook:
        if node not in self._outlooks:
            self._outlooks[node] = Outlook(self._cache.request(self._pod), self._cache.ledger, node)
        return self._outlooks[node]

    def _best(self, level: int) -> _Found | None:
        if self._jointly:
            lower = [pod for pods in self._lower.values() for pod in pods if priority(pod) <= level]
            units = [unit for unit in self._all_units(lower) if self._budgets.allow(unit.charges)]
            units = [unit for unit in units if unit.cost.highest <= level]
            return self._cheapest(units, self._nodes, None)
        best: _Found | None = None
        for node in self._promising():
            units = self._allowed(node, level)
            if units and self._outlook(node).may_help({pod.uid for unit in units for pod in unit.pods}):
                for group in self._groups(node, units):
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

        def helps(some: Sequence[Unit]) -> bool:
            return self._is_room_without(some, nodes)

        def may_help(some: Sequence[Unit]) -> bool:
            return self._outlook(nodes[0]).may_help({pod.uid for unit in some for pod in unit.pods})

        below = best.cost if best is not None else None
        trials = FEW_TRIALS if self._jointly and len(units) > SMALL else TRIALS
        quick = helps if self._jointly else may_help
        chosen = cheapest(units, helps, self._budgets, may_help=quick, below=below, trials=trials)
        if chosen is None:
            return None
        with self._without(chosen):
            return _Found(cost_of(chosen), chosen, self._places(nodes))

    def _is_room_without(self, units: Sequence[Unit], nodes: Sequence[str]) -> bool:
        with self._without(units):
            return bool(self._places(nodes)) if self._jointly else self._first_that_fits(nodes) is not None

    @contextmanager
    def _without(self, units: Sequence[Unit]) -> Generator[None]:
        """As if these were gone, too."""
        uids = frozenset(pod.uid for unit in units for pod in unit.pods)
        before, self._gone = self._gone, self._gone | uids
        try:
            with self._cache.without(uids):
                yield
        finally:
            self._gone = before

    def _places(self, nodes: Sequence[str]) -> Mapping[str, PodAllocation]:
        """Where the pods go now, on `nodes`; empty where there is no room for all."""
        cache = self._cache
        if self._gang is not None:
            found = place_gang(cache, self._gang, self._policies, pod=self._pod, nodes=nodes, elsewhere=nodes)
            places = found.allocations
            return places if places and self._sums.take(self._pods, places, gone=self._gone) else {}
        node = self._first_that_fits(nodes)
        if node is None:
            return {}
        return {self._pod.uid: cache.ranking.choose(cache.request(self._pod), node, self._policies)}

    def _first_that_fits(self, nodes: Sequence[str]) -> str | None:
        """The first of `nodes` that takes the pod, cards and all else."""
        request = self._cache.request(self._pod)
        fits = self._cache.filter(request, nodes).fits
        return next((node for node in fits if not self._is_short(node)), None)
