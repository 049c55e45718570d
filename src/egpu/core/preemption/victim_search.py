"""The cheapest victims for one pod or gang: the set that makes room, breaks no PodDisruptionBudget, and lets the pod
in by everything else that can be told (CPU, memory, taints, selectors, ports).

A pod is looked for node by node, and there by the sets of cards that it could be on: whoever holds none of them need
not go. A gang is placed whole or not at all, wherever it may be, and a pod of the pool likewise.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from egpu.api.allocation import PodAllocation
from egpu.api.kubernetes import Pod
from egpu.core.gangs.membership import Gang
from egpu.core.gangs.placing import place_gang
from egpu.core.placement.reservations import priority
from egpu.core.placement.usage import CardKey
from egpu.core.preemption.budgets import Budgets
from egpu.core.preemption.outlook import Outlook
from egpu.core.preemption.scene import InVain, Plan, Scene
from egpu.core.preemption.search import TRIALS, cheapest
from egpu.core.preemption.sums import Sums
from egpu.core.preemption.victims import Cost, Unit, cost_of, is_placed, units_below

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
class _Found:
    cost: Cost
    victims: tuple[Unit, ...]
    allocations: Mapping[str, PodAllocation]


class VictimSearch:
    """One pod or gang, in a ledger that shows what it may see."""

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
        self._nodes = sorted(scene.nodes)
        self._node_names = frozenset(self._nodes)
        self._gone: frozenset[str] = frozenset()
        self._lower: dict[str, dict[str, int]] = {}
        """By node: pods of lower priority that stay if they are left alone, by UID, and their priorities."""
        self._units_on: dict[str, list[Unit]] = {}
        self._outlooks: dict[str, Outlook] = {}
        self._promise: list[str] | None = None
        self._jointly = gang is not None or bool(self._cache.request(pod).pooled)
        """Whether all nodes have to be looked at together."""

    def run(self) -> Generator[None, None, Plan | InVain]:
        self._suppose()
        try:
            if self._places(self._nodes):
                return InVain("there is room for it; the scheduler has to ask again")
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
        """Where the pods go once these, and those who are leaving anyway, are gone; empty where there is no room then,
        or would be without these going, and where they may not go (any more)."""
        staying = [pod for pod in self._population.read(one.uid for one in victims) if _stays(pod)]
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
        """From here on the ledger shows what the pod may see of it."""
        self._thought.enter_context(self._cache.ranking.supposing())
        self._thought.enter_context(self._cache.reservations.lifted(self._pod))
        self._thought.enter_context(self._cache.without(self._gone))

    def _let_leave(self) -> None:
        """Who is leaving anyway is gone."""
        leaving = [uid for uid, placed in self._population.placed.items() if placed.leaving]
        self._thought.enter_context(self._cache.without(leaving))
        self._gone = frozenset(leaving)

    def _pause(self) -> Generator[None]:
        """Where it is due: meanwhile the ledger shows what is."""
        if self._due():
            self._thought.close()
            yield
            self._suppose()

    # --- who may go -------------------------------------------------------------------------------------------------

    def _find_lower(self) -> None:
        limit = min(map(priority, self._pods))
        own = {member.uid for member in self._gang.bound} if self._gang is not None else set[str]()
        for uid, placed in self._population.placed.items():
            if not placed.leaving and placed.priority < limit and uid not in own:
                self._lower.setdefault(placed.node, {})[uid] = placed.priority

    def _units(self, node: str) -> list[Unit]:
        """Who may go from the node, budgets aside."""
        if node not in self._units_on:
            limit = min(map(priority, self._pods))
            pods = filter(_stays, self._population.read(self._lower.get(node, ())))
            self._units_on[node] = units_below(limit, pods, self._cache, self._budgets)
        return self._units_on[node]

    def _allowed(self, node: str, level: int) -> list[Unit]:
        """Of these, who breaks no budget by themselves and is not more important than `level`."""
        return [one for one in self._units(node) if one.cost.highest <= level and self._budgets.allow(one.charges)]

    def _in_vain(self) -> Generator[None, None, InVain]:
        lower = {uid: found for some in self._lower.values() for uid, found in some.items()}
        helps = self._jointly and self._is_room_without(self._all_units(lower), self._nodes)
        for node in [] if self._jointly else (yield from self._promising()):
            yield from self._pause()
            helps = helps or self._is_room_without(self._units(node), [node])
        if not helps:
            why = "" if self._jointly else self._objections()
            return InVain(f"there would be no room with all {len(lower)} pods of lower priority gone{why}")
        pods: list[Pod] = []
        for uid in lower:
            yield from self._pause()
            pods += self._population.read([uid])
        broken = ", ".join(self._budgets.broken_by(pods))
        return InVain(f"it would break PodDisruptionBudgets: {broken}" if broken else "too many pods would have to go")

    def _objections(self) -> str:
        """What stands against the nodes beside room: the first, for people."""
        gone = self._gone.union(*(_uids(units) for units in self._units_on.values()))
        found = (self._sums.objection(self._pod, node, gone=gone) for node in self._promise or ())
        first = next(filter(None, found), "")
        return f" ({first})" if first else ""

    def _all_units(self, lower: Mapping[str, int]) -> list[Unit]:
        """The units of the least important of these pods, as many as can be looked at together. `lower`: priorities by
        UID."""
        some = sorted(lower, key=lambda uid: (lower[uid], uid))[:MOST_UNITS]
        pods = filter(_stays, self._population.read(some))
        return units_below(min(map(priority, self._pods)), pods, self._cache, self._budgets)

    # --- the search -------------------------------------------------------------------------------------------------

    def _promising(self) -> Generator[None, None, list[str]]:
        """Nodes where there may be room with everybody gone who may go, those with most of them first."""
        if self._promise is None:
            found: list[str] = []
            for node in sorted(self._lower, key=lambda node: (-len(self._lower[node]), node)):
                yield from self._pause()
                if node in self._node_names and self._outlook(node).may_help(_uids(self._units(node))):
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
            if units and self._outlook(node).may_help(_uids(units)):
                for group in self._groups(node, units):
                    best = (yield from self._cheapest(group, [node], best)) or best
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

    def _cheapest(
        self, units: Sequence[Unit], nodes: Sequence[str], best: _Found | None
    ) -> Generator[None, None, _Found | None]:
        """Among `units`, if better than `best`."""

        def helps(some: Sequence[Unit]) -> bool:
            return self._is_room_without(some, nodes)

        def may_help(some: Sequence[Unit]) -> bool:
            return self._outlook(nodes[0]).may_help(_uids(some))

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
        """As if these were gone, too. No pause inside."""
        before, self._gone = self._gone, self._gone.union(uids)
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


def _stays(pod: Pod) -> bool:
    """Whether the pod has cards, and keeps them if it is left alone."""
    return is_placed(pod) and pod.metadata.deletion_timestamp is None


def _uids(units: Iterable[Unit]) -> frozenset[str]:
    return frozenset(pod.uid for unit in units for pod in unit.pods)
