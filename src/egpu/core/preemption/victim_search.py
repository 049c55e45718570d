"""The cheapest victims for one pod or gang: the set that makes room, breaks no PodDisruptionBudget, and meets all other
rules that can be checked (CPU, memory, taints, selectors, ports).

A pod is searched node by node, and there by the sets of cards that it could use: pods on other cards stay. A gang is
placed as a whole on any nodes, and a pod of the pool likewise.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from egpu.api.allocation import PodAllocation
from egpu.core.gangs.membership import Gang
from egpu.core.gangs.placing import place_gang
from egpu.core.placement.card_usage import CardKey
from egpu.core.placement.reservations import priority
from egpu.core.preemption.budgets import Budgets
from egpu.core.preemption.outlook import Outlook
from egpu.core.preemption.scene import InVain, Plan, Scene
from egpu.core.preemption.search import TRIALS, cheapest
from egpu.core.preemption.sums import Sums
from egpu.core.preemption.victims import Cost, Unit, cost_of, has_cards, holds_cards, units_below
from egpu_base.api.kubernetes import Pod

MOST_NODES: Final = 32
"""Nodes examined closely for one pod, those with most possible victims; kube-scheduler, too, examines only a part."""
MOST_SETS: Final = 128
"""Sets of cards of one node; with more, its pods are examined all together."""
MOST_UNITS: Final = 64
"""Victims examined together where nodes cannot be examined one by one: the least important."""
SMALL: Final = 8
FEW_TRIALS: Final = 32
"""Sets tried of more units than SMALL: each trial evaluates the whole cluster."""


@dataclass(frozen=True)
class _Found:
    cost: Cost
    victims: tuple[Unit, ...]
    allocations: Mapping[str, PodAllocation]


class VictimSearch:
    """The search for one pod or gang, in a ledger without the reservations that the pod may ignore."""

    def __init__(self, pod: Pod, gang: Gang | None, pods: Sequence[Pod], scene: Scene, due: Callable[[], bool]) -> None:
        self._pod = pod
        self._gang = gang
        self._pods = tuple(pods)
        self._cache = scene.cache
        self._policies = scene.policies
        self._due = due
        self._thought = ExitStack()
        self._population = scene.pods
        self._budgets = Budgets(scene.budgets)
        self._sums = Sums(scene.nodes, scene.pods)
        by_claims = pod.uid in self._cache.device_claims.unmet
        self._nodes = sorted(
            scene.nodes.keys() & {*self._cache.device_claims.priced_nodes()} if by_claims else scene.nodes
        )
        self._node_names = frozenset(self._nodes)
        self._gone: frozenset[str] = frozenset()
        self._lower: dict[str, dict[str, int]] = {}
        """Pods of lower priority that are not leaving: node → UID → priority."""
        self._units_on: dict[str, list[Unit]] = {}
        self._outlooks: dict[str, Outlook] = {}
        self._promise: list[str] | None = None
        self._jointly = gang is not None or bool(self._cache.request(pod).pooled)
        """True if all nodes have to be examined together."""

    def run(self) -> Generator[None, None, Plan | InVain]:
        self._suppose()
        try:
            if self._places(self._nodes):
                return InVain("there is room for it when the scheduler tries again")
            self._let_leave()
            if places := self._places(self._nodes):
                return Plan(self._pods, places, ())
            yield from self._pause()
            self._find_lower()
            if not self._lower:
                return InVain("no pod of lower priority has cards")
            for level in sorted({found for lower in self._lower.values() for found in lower.values()}):
                found = yield from self._best(level)
                if found is not None:
                    victims = tuple(pod for unit in found.victims for pod in unit.pods)
                    return Plan(self._pods, found.allocations, victims)
            return (yield from self._in_vain())
        finally:
            self._thought.close()

    def places_without(self, victims: Sequence[Pod]) -> Mapping[str, PodAllocation]:
        """Return the places of the pods after these victims and all leaving pods are gone. Empty if there is no room
        then, if there is room without these evictions, or if they are not allowed (any more)."""
        staying = [pod for pod in self._population.read(one.uid for one in victims) if self._stays(pod)]
        if len(staying) < len(victims) or self._budgets.broken_by(staying):
            return {}
        self._suppose()
        try:
            self._let_leave()
            if victims and self._places(self._nodes):
                return {}
            with self._without([one.uid for one in victims]):
                return self._places(self._nodes)
        finally:
            self._thought.close()

    # --- what is supposed meanwhile ---------------------------------------------------------------------------------

    def _suppose(self) -> None:
        """Enter the tentative state: the ledger as the pod may see it."""
        self._thought.enter_context(self._cache.ranking.supposing())
        self._thought.enter_context(self._cache.reservations.lifted(self._pod))
        self._thought.enter_context(self._cache.without(self._gone))

    def _let_leave(self) -> None:
        """Remove the pods that are being deleted."""
        leaving = [uid for uid, placed in self._population.placed.items() if placed.leaving]
        self._thought.enter_context(self._cache.without(leaving))
        self._gone = frozenset(leaving)

    def _pause(self) -> Generator[None]:
        """Yield if a pause is due, with the tentative state undone meanwhile."""
        if self._due():
            self._thought.close()
            yield
            self._suppose()

    # --- who may go -------------------------------------------------------------------------------------------------

    def _find_lower(self) -> None:
        limit = min(map(priority, self._pods))
        own = {member.uid for member in self._gang.bound} if self._gang is not None else set[str]()
        for uid, placed in self._population.placed.items():
            if not placed.leaving and placed.priority < limit and uid not in own and holds_cards(uid, self._cache):
                self._lower.setdefault(placed.node, {})[uid] = placed.priority

    def _units(self, node: str) -> list[Unit]:
        """Return the possible victims of the node, budgets aside."""
        if node not in self._units_on:
            limit = min(map(priority, self._pods))
            pods = filter(self._stays, self._population.read(self._lower.get(node, ())))
            self._units_on[node] = units_below(limit, pods, self._cache, self._budgets)
        return self._units_on[node]

    def _allowed(self, node: str, level: int) -> list[Unit]:
        """Return the possible victims that break no budget alone and are not more important than `level`."""
        return [one for one in self._units(node) if one.cost.highest <= level and self._budgets.allow(one.charges)]

    def _in_vain(self) -> Generator[None, None, InVain]:
        lower = {uid: found for some in self._lower.values() for uid, found in some.items()}
        helps = self._jointly and self._is_room_without(self._all_units(lower), self._nodes)
        for node in [] if self._jointly else (yield from self._promising()):
            yield from self._pause()
            helps = helps or self._is_room_without(self._units(node), [node])
        if not helps:
            why = "" if self._jointly else self._objections()
            return InVain(f"evicting all {len(lower)} pods of lower priority would make no room{why}")
        pods: list[Pod] = []
        for uid in lower:
            yield from self._pause()
            pods += self._population.read([uid])
        broken = ", ".join(self._budgets.broken_by(pods))
        return InVain(f"it would break PodDisruptionBudgets: {broken}" if broken else "too many pods would be evicted")

    def _objections(self) -> str:
        """Return the first objection of the nodes, apart from room, for people."""
        gone = self._gone.union(*(_uids(units) for units in self._units_on.values()))
        found = (self._sums.objection(self._pod, node, gone=gone) for node in self._promise or ())
        first = next(filter(None, found), "")
        return f" ({first})" if first else ""

    def _all_units(self, lower: Mapping[str, int]) -> list[Unit]:
        """Return the least important units of these pods (priorities by UID), limited to MOST_UNITS pods."""
        some = sorted(lower, key=lambda uid: (lower[uid], uid))[:MOST_UNITS]
        pods = filter(self._stays, self._population.read(some))
        return units_below(min(map(priority, self._pods)), pods, self._cache, self._budgets)

    def _stays(self, pod: Pod) -> bool:
        """Return whether the pod has cards, and keeps them without an eviction."""
        return has_cards(pod, self._cache) and pod.metadata.deletion_timestamp is None

    # --- the search -------------------------------------------------------------------------------------------------

    def _promising(self) -> Generator[None, None, list[str]]:
        """Return nodes that may have room with all possible victims gone, those with most of them first."""
        if self._promise is None:
            found: list[str] = []
            for node in sorted(self._lower, key=lambda node: (-len(self._lower[node]), node)):
                yield from self._pause()
                if node in self._node_names and self._outlook(node).may_help(_holders(self._units(node))):
                    found.append(node)
                if len(found) == MOST_NODES:
                    break
            self._promise = found
        return self._promise

    def _outlook(self, node: str) -> Outlook:
        if node not in self._outlooks:
            self._outlooks[node] = Outlook(self._cache.request(self._pod), self._cache.ledger, node)
        return self._outlooks[node]

    def _best(self, level: int) -> Generator[None, None, _Found | None]:
        if self._jointly:
            some = (pair for lower in self._lower.values() for pair in lower.items())
            lower = {uid: found for uid, found in some if found <= level}
            units = [unit for unit in self._all_units(lower) if self._budgets.allow(unit.charges)]
            units = [unit for unit in units if unit.cost.highest <= level]
            return (yield from self._cheapest(units, self._nodes, None))
        best: _Found | None = None
        for node in (yield from self._promising()):
            yield from self._pause()
            units = self._allowed(node, level)
            if units and self._outlook(node).may_help(_holders(units)):
                for group in self._groups(node, units):
                    best = (yield from self._cheapest(group, [node], best)) or best
        return best

    def _groups(self, node: str, units: Sequence[Unit]) -> Iterator[Sequence[Unit]]:
        """Yield groups of units to search: by possible set of cards; all if another resource is short."""
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
        """Return whether the node lacks a resource other than cards."""
        request, free = self._cache.request(self._pod), self._cache.hosts.free(node)
        if free.cpu_milli < request.cpu_milli or free.ram_mib < request.ram_mib:
            return True
        anywhere = {self._pod.uid: PodAllocation(node=node, containers={})}
        return not self._sums.take([self._pod], anywhere, gone=self._gone)

    def _cheapest(
        self, units: Sequence[Unit], nodes: Sequence[str], best: _Found | None
    ) -> Generator[None, None, _Found | None]:
        """Return the cheapest victims among `units`, if they are better than `best`."""

        def helps(some: Sequence[Unit]) -> bool:
            return self._is_room_without(some, nodes)

        def may_help(some: Sequence[Unit]) -> bool:
            return self._outlook(nodes[0]).may_help(_holders(some))

        below = best.cost if best is not None else None
        trials = FEW_TRIALS if self._jointly and len(units) > SMALL else TRIALS
        quick = helps if self._jointly else may_help
        chosen = yield from cheapest(
            units, helps, self._budgets, may_help=quick, pause=self._pause, below=below, trials=trials
        )
        if chosen is None:
            return None
        with self._without(_uids(chosen)):
            return _Found(cost_of(chosen), chosen, self._places(nodes))

    def _is_room_without(self, units: Sequence[Unit], nodes: Sequence[str]) -> bool:
        with self._without(_uids(units)):
            return bool(self._places(nodes)) if self._jointly else self._first_that_fits(nodes) is not None

    @contextmanager
    def _without(self, uids: Collection[str]) -> Generator[None]:
        """Remove these, too, within the context. No pause inside."""
        before, self._gone = self._gone, self._gone.union(uids)
        try:
            with self._cache.without(uids):
                yield
        finally:
            self._gone = before

    def _places(self, nodes: Sequence[str]) -> Mapping[str, PodAllocation]:
        """Return the places of the pods on `nodes` now; empty if there is no room for all."""
        cache = self._cache
        if self._gang is not None:
            found = place_gang(cache, self._gang, self._policies, pod=self._pod, nodes=nodes, default_nodes=nodes)
            places = found.allocations
            return places if places and self._sums.take(self._pods, places, gone=self._gone) else {}
        node = self._first_that_fits(nodes)
        if node is None:
            return {}
        return {self._pod.uid: cache.ranking.choose(cache.request(self._pod), node, self._policies)}

    def _first_that_fits(self, nodes: Sequence[str]) -> str | None:
        """Return the first of `nodes` that takes the pod, with cards and all else."""
        request = self._cache.request(self._pod)
        fits = self._cache.filter(request, nodes).fits
        return next((node for node in fits if not self._is_short(node)), None)


def _holders(units: Iterable[Unit]) -> frozenset[str]:
    return frozenset(uid for unit in units for uid in unit.holders)


def _uids(units: Iterable[Unit]) -> frozenset[str]:
    return frozenset(pod.uid for unit in units for pod in unit.pods)
