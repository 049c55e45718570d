"""What is said of a plan, and what a plan keeps away from; which plan is best, a property test asks."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.disruption import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from egpu.api.kubernetes import LabelSelector, LabelSelectorRequirement, Node, NodeSpec, NodeStatus, Pod, Taint
from egpu.api.objects import ClaimAllocation, Condition, ObjectMeta
from egpu.api.quantities import Quantity
from egpu.core.placement.cache import SchedulerCache
from egpu.core.preemption.budgets import Budgets
from egpu.core.preemption.explaining import explain_with_preemption
from egpu.core.preemption.plan import InVain, Plan, Scene, plan
from egpu.core.preemption.search import cheapest
from egpu.core.preemption.victims import units_below
from support.objects import BINPACK, CORE, MEMORY, claim, claim_pod, cluster, container, gpu_class, place, placed, pod

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
    return Scene(cache, known, shown, budgets, BINPACK)


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
        (asking("w", 30, priority=9), "there is room for it; the scheduler has to ask again"),
        (
            asking("w", priority=9, affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}),
            "spec.affinity.podAffinity cannot be checked beforehand, and nobody is evicted on a guess",
        ),
        (
            asking("w", priority=9, topology_spread_constraints=[{"whenUnsatisfiable": "DoNotSchedule"}]),
            "spec.topologySpreadConstraints cannot be checked beforehand, and nobody is evicted on a guess",
        ),
        (
            asking("w", priority=9, node_selector={"zone": "elsewhere"}),
            "there would be no room with all 1 pods of lower priority gone",
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
    units = units_below(9, scene.pods, cache, Budgets())
    found = cheapest(units, lambda some: len(some) >= 9, Budgets(), may_help=lambda some: len(some) >= 9)
    assert found is not None
    assert len(found) == 9
    assert sum(unit.cost.highest == 2 for unit in found) == 1, "the most important ones come back first"
