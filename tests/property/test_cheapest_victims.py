"""Full clusters of any make, and a pod, or a gang, that is more important than others: whom it evicts.

An exhaustive search over all sets of victims, each on a cluster made anew without them, says what the best plan is.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import encode
from egpu.api.objects import ElasticGPU
from egpu.core.gangs.placing import place_gang
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu.core.preemption.plan import plan
from egpu.core.preemption.population import Population
from egpu.core.preemption.scene import InVain, Plan, Scene
from egpu.core.preemption.search import TRIALS
from egpu_base.api.disruption import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from egpu_base.api.kubernetes import LabelSelector, Node, NodeStatus, Pod
from egpu_base.api.objects import Condition, ObjectMeta
from support.long import or_long
from support.objects import BINPACK, SPREAD, card, container, pod

MOST_VICTIMS = 7
assert 2**MOST_VICTIMS < TRIALS, "the search of the plan has to be exact"

shares = st.sampled_from([20, 30, 50, 60, 100])
priorities = st.sampled_from([-10, 0, 0, 5, 10])


@dataclass(frozen=True)
class World:
    gpus: tuple[ElasticGPU, ...]
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    budgets: tuple[PodDisruptionBudget, ...]

    def cache(self, *, without: frozenset[str] = frozenset()) -> SchedulerCache:
        return rebuild(self.gpus, [one for one in self.pods if one.uid not in without], [], [], self.nodes)

    def scene(self, cache: SchedulerCache) -> Scene:
        return Scene(cache, {node.name: node for node in self.nodes}, Population.of(self.pods), self.budgets, BINPACK)


def asking(name: str, cores: Sequence[int], cpu: int, priority: int, gang: tuple[str, int] | None = None) -> Pod:
    parts = [container(f"c{at}", {names.GPU_CORE: core, "cpu": cpu}) for at, core in enumerate(cores)]
    annotations = {names.GANG: gang[0], names.GANG_SIZE: str(gang[1])} if gang is not None else {}
    made = pod(name, *parts, annotations=annotations)
    return replace(made, spec=replace(made.spec, priority=priority))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Nodes filled with pods until few fit; some pods are gangs of two, some have budgets."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    gpus = tuple(card(f"n{node}", index) for node, count in enumerate(counts) for index in range(count))
    nodes = tuple(
        Node(
            metadata=ObjectMeta(name=f"n{node}"),
            status=NodeStatus(
                allocatable={
                    "cpu": draw(st.sampled_from([2, 4, 100])),
                    "pods": 50,
                    names.GPU_CORE: 100 * counts[node],
                },
                conditions=[Condition(type="Ready", status="True")],
            ),
        )
        for node in range(len(counts))
    )
    cache = rebuild(gpus, [], [], [], nodes)
    how = draw(st.sampled_from([BINPACK, SPREAD]))
    bound: list[Pod] = []
    for number in range(draw(st.integers(1, MOST_VICTIMS))):
        gang = ("old", 2) if number < 2 and draw(st.booleans()) else None
        cores, cpu = draw(st.lists(shares, min_size=1, max_size=2)), draw(st.integers(0, 1))
        one = asking(f"v{number}", cores, cpu, draw(priorities), gang)
        fits = [
            name
            for name in cache.filter(cache.request(one), [node.name for node in nodes]).fits
            if cache.hosts.free(name).cpu_milli >= cache.request(one).cpu_milli
        ]
        if not fits:
            continue
        allocation = cache.ranking.choose(cache.request(one), draw(st.sampled_from(fits)), how)
        cache.assume_pod(one, allocation)
        labels = {"app": draw(st.sampled_from(["a", "b"]))}
        annotations = one.annotations | {names.ALLOCATION: encode(allocation)}
        meta = replace(one.metadata, labels=labels, annotations=annotations)
        ready = [Condition(type="Ready", status="True")]
        status = replace(one.status, phase="Running", start_time=f"2026-01-01T00:00:{number:02}Z", conditions=ready)
        bound.append(replace(one, metadata=meta, spec=replace(one.spec, node_name=allocation.node), status=status))
    budgets = tuple(
        PodDisruptionBudget(
            metadata=ObjectMeta(name=f"of-{app}", namespace="default"),
            spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": app})),
            status=PodDisruptionBudgetStatus(disruptions_allowed=draw(st.integers(0, 2))),
        )
        for app in draw(st.sampled_from([[], ["a"], ["a", "b"]]))
    )
    return World(gpus, nodes, tuple(bound), budgets)


def room(world: World, asked: Sequence[Pod], gone: frozenset[str]) -> bool:
    """Whether all of the pods fit once those are gone."""
    cache = world.cache(without=gone)
    nodes = [node.name for node in world.nodes]
    for one in asked:
        cache.pod_changed(one)
    gang = cache.gangs.of(asked[0])
    if gang is not None:
        return bool(place_gang(cache, gang, BINPACK, pod=asked[0], nodes=nodes, default_nodes=nodes).allocations)
    request = cache.request(asked[0])
    fits = cache.filter(request, nodes).fits
    return any(cache.hosts.free(name).cpu_milli >= request.cpu_milli for name in fits)


def whole_gangs(world: World, some: Sequence[Pod]) -> bool:
    """Whether every gang is among them whole, or not at all."""
    chosen = {one.uid for one in some}
    old = {one.uid for one in world.pods if names.GANG in one.annotations}
    return not old & chosen or old <= chosen


def unbroken(world: World, some: Sequence[Pod]) -> bool:
    going = Counter((one.metadata.labels or {}).get("app") for one in some)
    left = {budget.name.removeprefix("of-"): budget.status.disruptions_allowed for budget in world.budgets}
    return all(going[app] <= allowed for app, allowed in left.items())


def cost(some: Sequence[Pod]) -> tuple[int, int, int]:
    ranks = [one.spec.priority or 0 for one in some]
    return max(ranks), sum(rank + 2**31 for rank in ranks), len(ranks)


def sets(pods: Sequence[Pod]) -> Iterator[tuple[Pod, ...]]:
    return chain.from_iterable(combinations(pods, size) for size in range(1, len(pods) + 1))


def cheapest(world: World, asked: Sequence[Pod]) -> tuple[int, int, int] | None:
    """By trying all sets."""
    limit = min(one.spec.priority or 0 for one in asked)
    lower = [one for one in world.pods if (one.spec.priority or 0) < limit]
    possible = [some for some in sets(lower) if whole_gangs(world, some) and unbroken(world, some)]
    for some in sorted(possible, key=cost):
        if room(world, asked, frozenset(one.uid for one in some)):
            return cost(some)
    return None


def check(world: World, asked: Sequence[Pod]) -> None:
    cache = world.cache()
    for one in asked:
        cache.pod_changed(one)
    books = cache.ledger.snapshot()
    found = plan(asked[0], world.scene(cache))
    assert cache.ledger.snapshot() == books, "a plan is only a thought"
    if room(world, asked, frozenset()):
        assert isinstance(found, InVain)
        return
    best = cheapest(world, asked)
    if best is None:
        assert isinstance(found, InVain)
        return
    assert isinstance(found, Plan), found
    assert cost(found.victims) == best
    assert whole_gangs(world, found.victims)
    assert unbroken(world, found.victims)
    rest = world.cache(without=frozenset(one.uid for one in found.victims))
    for one in asked:
        rest.assume_pod(one, found.allocations[one.uid])
    assert rest.ledger.overcommits() == []


@settings(max_examples=or_long(50, 150), deadline=None)
@given(worlds(), st.lists(shares, min_size=1, max_size=2), st.integers(0, 1), st.sampled_from([0, 5, 20]))
def test_a_pod_evicts_the_cheapest_set_of_all(world: World, cores: list[int], cpu: int, priority: int) -> None:
    check(world, [asking("new", cores, cpu, priority)])


@settings(max_examples=60, deadline=None)
@given(worlds(), shares, st.integers(2, 3), st.sampled_from([5, 20]))
def test_a_gang_evicts_for_all_its_members_or_for_none(world: World, core: int, size: int, priority: int) -> None:
    check(world, [asking(f"new{number}", [core], 0, priority, ("new", size)) for number in range(size)])
