"""What is said of a plan, and what a plan keeps away from; which plan is best, a property test asks."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.objects import ClaimAllocation
from egpu.core.placement.cache import SchedulerCache
from egpu.core.preemption.budgets import Budgets
from egpu.core.preemption.explaining import explain_with_preemption
from egpu.core.preemption.plan import confirmed, plan, plan_in_slices
from egpu.core.preemption.population import Population
from egpu.core.preemption.scene import InVain, Plan, Scene
from egpu.core.preemption.search import cheapest
from egpu.core.preemption.victims import units_below
from egpu_base.api.disruption import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from egpu_base.api.kubernetes import (
    ContainerPort,
    LabelSelector,
    LabelSelectorRequirement,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    Taint,
)
from egpu_base.api.objects import Condition, ObjectMeta
from egpu_base.api.quantities import Quantity
from egpu_base.errors import Conflict
from support.objects import (
    BINPACK,
    CORE,
    MEMORY,
    card,
    claim,
    claim_pod,
    cluster,
    container,
    gpu_class,
    place,
    placed,
    pod,
)

_ALL = LabelSelector()


def asking(name: str, core: int = 60, *, blocks: int = 8, priority: int = 0, policy: str = "", **more: Any) -> Pod:
    made = pod(name, container("app", {CORE: core, MEMORY: blocks}))
    return replace(made, spec=replace(made.spec, priority=priority, preemption_policy=policy, **more))


def node(name: str, *, taints: Sequence[Taint] = (), offered: Mapping[str, int] | None = None) -> Node:
    conditions = [Condition(type="Ready", status="True")]
    allocatable: dict[str, Quantity] = {CORE: 1000, MEMORY: 1000, "pods": 10, **(offered or {})}
    status = NodeStatus(allocatable=allocatable, conditions=conditions)
    return Node(metadata=ObjectMeta(name=name), spec=NodeSpec(taints=list(taints)), status=status)


def on(
    cache: SchedulerCache, *pods: Pod, nodes: Sequence[Node] = (), budgets: Sequence[PodDisruptionBudget] = ()
) -> Scene:
    """Pods that have a place, and the others as they are."""
    known = {each.name: each for each in nodes or [node("n0")]}
    for each in known.values():
        cache.node_changed(each)
    shown = [each if each.spec.node_name else placed(each, place(cache, each)) for each in pods]
    return Scene(cache, known, Population.of(shown), budgets, BINPACK)


def budget(
    allowed: int, *, healthy: int = 1, generation: int = 0, selector: LabelSelector | None = _ALL
) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        metadata=ObjectMeta(name="of-all", namespace="default", generation=generation),
        spec=PodDisruptionBudgetSpec(selector=selector),
        status=PodDisruptionBudgetStatus(disruptions_allowed=allowed, current_healthy=healthy, desired_healthy=1),
    )


def why(what: Pod, scene: Scene) -> str:
    found = plan(what, scene)
    assert isinstance(found, InVain), found
    return found.reason


def test_an_explanation_shows_whom_it_would_evict_and_where():
    scene = on(cluster(1, 2), asking("a", priority=5), asking("b", priority=-1))
    lines = explain_with_preemption(asking("w", priority=9), scene).lines()
    assert "  preemption: would evict default/b (priority -1) for card GPU-n0-1 of node n0" in lines


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (asking("w", priority=9, policy="Never"), "its preemptionPolicy is Never"),
        (asking("w", priority=5), "no pod of lower priority has cards"),
        (asking("w", 30, priority=9), "there is room for it when the scheduler tries again"),
        (
            asking("w", priority=9, affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}),
            "spec.affinity.podAffinity cannot be checked in advance, so no pod is evicted",
        ),
        (
            asking("w", priority=9, topology_spread_constraints=[{"whenUnsatisfiable": "DoNotSchedule"}]),
            "spec.topologySpreadConstraints cannot be checked in advance, so no pod is evicted",
        ),
        (
            asking("w", priority=9, node_selector={"zone": "elsewhere"}),
            "evicting all 1 pods of lower priority would make no room",
        ),
    ],
)
def test_why_nobody_goes(asked: Pod, reason: str):
    assert why(asked, on(cluster(), asking("a", priority=5))) == reason


def test_nobody_goes_for_a_pod_that_its_node_does_not_take_anyway():
    for here in (
        node("n0", taints=[Taint(key="only", effect="NoSchedule")]),
        node("n0", offered={CORE: 50}),
        replace(node("n0"), spec=NodeSpec(unschedulable=True)),
    ):
        asked = asking("w", priority=9)
        assert "no room" in why(asked, on(cluster(), asking("a", 40, priority=5), nodes=[here])), here


def test_a_budget_that_would_be_broken_is_named():
    scene = on(cluster(), asking("a"), budgets=[budget(0, healthy=0)])
    assert why(asking("w", priority=9), scene) == "it would break PodDisruptionBudgets: default/of-all"


def test_whose_end_has_begun_is_waited_for_and_nobody_else_goes():
    cache = cluster(1, 2)
    first, second = (placed(one, place(cache, one)) for one in (asking("a"), asking("b", priority=-5)))
    ending = replace(first, metadata=replace(first.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    found = plan(asking("w", priority=9), on(cache, ending, second))
    assert isinstance(found, Plan)
    assert found.victims == ()
    assert found.allocations["uid-w"].containers["app"].cards[0].uuid == "GPU-n0-0"


def test_what_a_claim_holds_is_not_freed_and_its_user_goes_for_another_of_its_users():
    cache = cluster()
    cache.class_changed(gpu_class())
    held = claim("c", {names.GPU_CORE: 100, names.GPU_MEMORY: 1024})
    allocation = cache.ranking.choose(cache.claim_request(held), "n0", BINPACK).containers["claim"]
    given = ClaimAllocation(node="n0", container=allocation)
    cache.claim_changed(replace(held, status=replace(held.status, phase="Bound", allocation=given)))
    scene = on(cache, claim_pod("user", "c"))
    assert "no room" in why(asking("w", priority=9), scene)
    heir = claim_pod("heir", "c")
    found = plan(replace(heir, spec=replace(heir.spec, priority=9)), scene)
    assert isinstance(found, Plan)
    assert [each.name for each in found.victims] == ["user"]


def test_budgets_charge_ready_pods_of_theirs_alone():
    ready = [Condition(type="Ready", status="True")]
    runs = replace(asking("a"), status=replace(asking("a").status, phase="Running", conditions=ready))
    labelled = replace(runs, metadata=replace(runs.metadata, labels={"app": "x"}))
    meets = LabelSelectorRequirement(key="app", operator="In", values=["x"])
    assert Budgets([budget(1)]).charges(runs) == ("default/of-all",)
    assert Budgets([budget(1, selector=None)]).charges(runs) == ()
    assert Budgets([budget(1, selector=LabelSelector(match_expressions=[meets]))]).charges(runs) == ()
    assert Budgets([budget(1, selector=LabelSelector(match_expressions=[meets]))]).charges(labelled) != ()
    unready = replace(runs, status=replace(runs.status, conditions=[]))
    assert Budgets([budget(1)]).charges(unready) == (), "enough others are healthy"
    assert Budgets([budget(1)]).charges(asking("pending")) == ()
    several = Budgets([budget(1), replace(budget(1), metadata=ObjectMeta(name="z", namespace="default"))])
    assert not several.allow(dict.fromkeys(several.charges(runs), 1)), "the Eviction API refuses who has two"
    stale = Budgets([budget(1, generation=2)])
    assert not stale.allow(dict.fromkeys(stale.charges(runs), 1)), "its controller has not seen it yet"


def test_of_more_than_can_be_tried_a_set_goes_of_which_nobody_could_be_spared():
    cache = cluster(1, 1)
    scene = on(cache, *(asking(f"p{number:02}", 5, blocks=1, priority=number % 3) for number in range(12)))
    units = units_below(9, scene.pods.on("n0"), cache, Budgets())
    steps = cheapest(units, lambda some: len(some) >= 9, Budgets(), may_help=lambda some: len(some) >= 9, pause=tuple)
    with pytest.raises(StopIteration) as end:
        next(steps)
    found = end.value.value
    assert len(found) == 9
    assert sum(unit.cost.highest == 2 for unit in found) == 1, "the most important ones come back first"


def with_port(one: Pod, port: int, *, ip: str = "", protocol: str = "TCP") -> Pod:
    (app,) = one.containers
    ports = [ContainerPort(host_port=port, host_ip=ip, protocol=protocol)]
    return replace(one, spec=replace(one.spec, containers=[replace(app, ports=ports)]))


@pytest.mark.parametrize(
    ("theirs", "mine", "clash"),
    [
        ((80, ""), (80, ""), True),
        ((80, "10.0.0.1"), (80, ""), True),
        ((80, "10.0.0.1"), (80, "10.0.0.2"), False),
        ((80, ""), (81, ""), False),
    ],
)
def test_nobody_goes_for_a_pod_whose_port_stays_taken(theirs: tuple[int, str], mine: tuple[int, str], clash: bool):
    taker = with_port(asking("taker", 10, priority=10), theirs[0], ip=theirs[1])
    scene = on(cluster(1, 1), asking("lesser"), taker)
    wants = with_port(asking("wants", priority=5), mine[0], ip=mine[1])
    if clash:
        reason = "evicting all 1 pods of lower priority would make no room (pod default/taker uses port 80 of node n0)"
        assert reason in why(wants, scene)
    else:
        assert [one.name for one in whom(wants, scene)] == ["lesser"]


def test_who_has_the_port_goes_too():
    """It has no part of the card that the pod could be on."""
    scene = on(cluster(1, 2), asking("lesser", 90), with_port(asking("taker", 30), 80), asking("other", 70))
    assert {one.name for one in whom(with_port(asking("wants", 60, priority=5), 80), scene)} >= {"taker"}


ZONE = "topology.kubernetes.io/zone"


def apart(**term: Any) -> dict[str, Any]:
    wanted = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "w"}}} | term
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [wanted]}}


@pytest.mark.parametrize(
    ("term", "forbids"),
    [
        ({}, True),
        ({"labelSelector": {"matchLabels": {"app": "x"}}}, False),
        ({"labelSelector": None}, False),
        ({"namespaces": ["elsewhere"]}, False),
        ({"namespaces": ["elsewhere"], "namespaceSelector": {}}, True),
        ({"topologyKey": "kubernetes.io/hostname"}, False),
        ({"labelSelector": {"matchExpressions": "garbled"}}, True),
    ],
)
def test_nobody_goes_where_somebody_in_the_zone_does_not_want_the_pod(term: dict[str, Any], forbids: bool):
    """A pod on another node of the zone, whose required anti-affinity kube-scheduler keeps to."""
    cache = cluster(2, 1)
    nodes = [labelled(node(name), **{ZONE: "z", "kubernetes.io/hostname": name}) for name in ("n0", "n1")]
    alone = asking("alone", 100, priority=10, affinity=apart(**term))
    alone = placed(alone, cache.ranking.choose(cache.request(alone), "n1", BINPACK))
    cache.pod_changed(alone)
    scene = on(cache, alone, asking("lesser"), nodes=nodes)
    wants = labelled(asking("wants", priority=5), app="w")
    if forbids:
        assert f"(the podAntiAffinity of pod default/alone forbids {ZONE}=z)" in why(wants, scene)
    else:
        assert [one.name for one in whom(wants, scene)] == ["lesser"]


@pytest.mark.parametrize(
    ("kind", "told"), [("persistentVolumeClaim", True), ("ephemeral", True), ("emptyDir", False), ("projected", False)]
)
def test_where_a_volume_can_be_is_not_guessed(kind: str, told: bool):
    scene = on(cluster(1, 1), asking("lesser"))
    wants = asking("wants", priority=5, volumes=[{"name": "data", kind: {}}])
    found = plan(wants, scene)
    assert isinstance(found, InVain) == told
    if isinstance(found, InVain):
        assert found.reason.startswith("the volume data cannot be checked in advance")


def test_between_two_slices_of_a_plan_the_ledger_shows_what_is():
    cache = cluster(1, 4)
    pods = [asking(f"p{number}", 25, blocks=2, priority=number % 3) for number in range(16)]
    scene = on(cache, *pods, nodes=[node("n0", offered={"pods": 100})])
    wants = asking("wants", 40, priority=5)
    expected = plan(wants, scene)
    assert isinstance(expected, Plan)
    before = cache.ledger.holders()
    steps = plan_in_slices(wants, scene, due=lambda: True)
    pauses = 0
    found: Plan | InVain | None = None
    while found is None:
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
        else:
            pauses += 1
            assert cache.ledger.holders() == before
            assert cache.ranking.fleet().departures == 0
    assert pauses >= 3, "before it begins, for each node, and for each set that is tried"
    assert isinstance(found, Plan)
    assert found.victims == expected.victims
    assert confirmed(wants, found, scene).allocations == expected.allocations


def test_a_plan_that_the_cluster_outran_is_not_confirmed():
    cache = cluster(1, 1)
    lesser = asking("lesser")
    scene = on(cache, lesser)
    wants = asking("wants", priority=5)
    found = plan(wants, scene)
    assert isinstance(found, Plan)
    (victim,) = found.victims
    going = replace(victim, metadata=replace(victim.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    for later in ([], [going]):
        with pytest.raises(Conflict):
            confirmed(wants, found, replace_pods(scene, later))
    guarded = [budget(0)]
    ready = replace(victim, status=replace(victim.status, conditions=[Condition(type="Ready", status="True")]))
    with pytest.raises(Conflict):
        confirmed(wants, found, Scene(cache, scene.nodes, Population.of([ready]), guarded, BINPACK))
    cache.gpu_changed(card("n0", 1))
    with pytest.raises(Conflict):
        confirmed(wants, found, scene)


def test_only_pods_of_nodes_where_somebody_may_go_are_read() -> None:
    cache = cluster(3)
    pods = [asking(f"p{at}", 60, priority=priority) for at, priority in enumerate((0, 9, 9))]
    there = [placed(one, place(cache, one, f"n{at}")) for at, one in enumerate(pods)]
    known = {one.uid: one for one in there}
    nodes = {f"n{at}": node(f"n{at}") for at in range(3)}
    read: list[str] = []

    def reading(uid: str) -> Pod | None:
        read.append(uid)
        return known.get(uid)

    population = Population(reading)
    for one in there:
        population.changed(one)
    found = plan(asking("urgent", 80, priority=5), Scene(cache, nodes, population, (), BINPACK))
    assert isinstance(found, Plan)
    assert set(read) == {"uid-p0"}


def test_a_population_forgets_who_has_ended_or_moved() -> None:
    one = placed(asking("one", 60), place(cluster(1, 1), asking("one", 60)))
    population = Population.of([one])
    assert [pod.uid for pod in population.on("n0")] == [one.uid]
    leaving = replace(one, metadata=replace(one.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    population.changed(leaving)
    assert population.placed[one.uid].leaving
    population.changed(replace(one, status=replace(one.status, phase="Failed")))
    assert (population.on("n0"), dict(population.placed), population.lowest) == ([], {}, None)


def replace_pods(scene: Scene, pods: Sequence[Pod]) -> Scene:
    return Scene(scene.cache, scene.nodes, Population.of(pods), scene.budgets, scene.policies)


def labelled(one: Any, **labels: str) -> Any:
    return replace(one, metadata=replace(one.metadata, labels=labels))


def whom(what: Pod, scene: Scene) -> tuple[Pod, ...]:
    found = plan(what, scene)
    assert isinstance(found, Plan), found
    return found.victims
