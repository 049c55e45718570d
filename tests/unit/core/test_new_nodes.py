"""Which new nodes would let a waiting pod start, and when an autoscaler would add none."""

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.core.growth import Help
from egpu.core.new_nodes import Stock, growth, helping, room_by_sums
from egpu.core.placement.cache import rebuild
from egpu.core.preemption.population import Population
from egpu_base.api.kubernetes import Node, NodeSpec, NodeStatus, Pod, Taint
from egpu_base.api.objects import Condition, ObjectMeta
from egpu_base.api.quantities import Quantity
from support.objects import BINPACK, card, claim, claim_pod, container, gang_pod, gpu_class, placed, pod

ZONE = "topology.kubernetes.io/zone"


def node(name: str, *, cards: int, labels: Mapping[str, str] | None = None, taints: Sequence[Taint] = ()) -> Node:
    room: dict[str, Quantity] = {
        names.GPU_CORE: 100 * cards, names.GPU_MEMORY: 16384 * cards, "pods": 10, "cpu": "4", "memory": "8Gi",
    }  # fmt: skip
    return Node(
        metadata=ObjectMeta(name=name, labels=dict(labels or {})),
        spec=NodeSpec(taints=list(taints)),
        status=NodeStatus(allocatable=room, conditions=[Condition(type="Ready", status="True")]),
    )


def asking(name: str, core: int, memory: int = 1024) -> Pod:
    return pod(name, container("app", {names.GPU_CORE: core, names.GPU_MEMORY: memory}))


def stock(*nodes: tuple[Node, int, str], pods: Sequence[Pod] = ()) -> Stock:
    """A cluster of these nodes, with so many cards of a model; each pod is placed on the first node that fits."""
    gpus = [card(one.name, index, model=model) for one, count, model in nodes for index in range(count)]
    cache = rebuild(gpus, [], [])
    done: list[Pod] = []
    for one in pods:
        request = cache.request(one)
        (first, *_) = cache.filter(request, [it.name for it, _, _ in nodes]).fits
        done.append(placed(one, cache.ranking.choose(request, first, BINPACK)))
        cache.pod_changed(done[-1])
    return Stock([one for one, _, _ in nodes], gpus, [], [], done)


def scattered() -> Stock:
    """Two cards of one node with 60 % in use each: 80 % are free in total, and 40 % of a card."""
    return stock((node("n0", cards=2), 2, "T4"), pods=[asking("a", 60), asking("b", 60)])


def test_one_more_node_helps_a_pod_that_finds_no_room() -> None:
    full = stock((node("n0", cards=1), 1, "T4"), pods=[asking("a", 90)])
    assert growth(asking("p", 30), full, BINPACK).lines() == ["would help: 1 more node like n0 (1 × T4 with 16 GiB)"]


def test_an_autoscaler_adds_no_node_for_a_pod_that_fits_by_the_sums() -> None:
    found = growth(asking("p", 70), scattered(), BINPACK)
    assert found.helps == (Help("n0", 1, (("T4", 16384), ("T4", 16384))),)
    assert found.lines()[1] == "autoscalers add no node for it: by the sums of their pods, node n0 has room"
    nodes = {one.name: one for one in scattered().nodes}
    assert room_by_sums(asking("p", 90), nodes, Population.of(scattered().pods)) == ()


def test_nothing_helps_a_pod_that_no_card_can_take() -> None:
    found = growth(asking("p", 30, memory=40_000), scattered(), BINPACK)
    assert found.lines() == ["would help: no further node of a kind that this cluster has"]


def test_each_set_of_cards_is_named_once_the_fewest_nodes_first() -> None:
    there = stock(
        (node("small-1", cards=1), 1, "T4"), (node("small-2", cards=1), 1, "T4"), (node("large", cards=4), 4, "A100"),
        pods=[asking(f"a{index}", 100) for index in range(6)],
    )  # fmt: skip
    found = helping(asking("p", 100), there, BINPACK)
    assert [(one.like, one.count) for one in found] == [("small-1", 1), ("large", 1)]


def test_a_gang_needs_nodes_for_all_its_waiting_members() -> None:
    members = [gang_pod(f"m{index}", size=3) for index in range(3)]
    there = stock((node("n0", cards=2), 2, "T4"), pods=[asking("a", 60), asking("b", 60)])
    there = Stock(there.nodes, there.gpus, (), (), [*there.pods, *members])
    assert [one.count for one in helping(members[0], there, BINPACK)] == [2]


def test_a_gang_uses_the_room_that_is_there_first() -> None:
    members = [gang_pod(f"m{index}", size=3) for index in range(3)]
    there = stock((node("n0", cards=2), 2, "T4"), pods=[asking("a", 60)])
    there = Stock(there.nodes, there.gpus, (), (), [*there.pods, *members])
    assert [one.count for one in helping(members[0], there, BINPACK)] == [1]


@pytest.mark.parametrize(("zone", "count"), [("a", 1), ("c", None)])
def test_labels_of_a_kind_of_node_count(zone: str, count: int | None) -> None:
    there = stock(
        (node("n0", cards=1, labels={ZONE: "a"}), 1, "T4"), (node("n1", cards=1, labels={ZONE: "b"}), 1, "T4"),
        pods=[asking("a", 100), asking("b", 100)],
    )  # fmt: skip
    what = asking("p", 30)
    what = replace(what, spec=replace(what.spec, node_selector={ZONE: zone}))
    assert [one.count for one in helping(what, there, BINPACK)] == ([] if count is None else [count])


def test_a_taint_of_the_kind_counts_and_one_of_the_moment_does_not() -> None:
    def helps(key: str) -> tuple[Help, ...]:
        tainted = node("n0", cards=1, taints=[Taint(key=key, effect="NoSchedule")])
        return helping(asking("p", 30), stock((tainted, 1, "T4")), BINPACK)

    assert helps("team") == ()
    assert [one.count for one in helps("node.kubernetes.io/disk-pressure")] == [1]


def test_a_sick_and_cordoned_node_is_new_again() -> None:
    there = stock((node("n0", cards=1), 1, "T4"))
    sick = Stock(
        [replace(there.nodes[0], spec=NodeSpec(unschedulable=True))], [card("n0", 0, healthy=False)], (), (), ()
    )
    assert [one.count for one in helping(asking("p", 30), sick, BINPACK)] == [1]


def test_memory_of_the_machine_counts() -> None:
    there = stock((node("n0", cards=1), 1, "T4"), pods=[asking("a", 90)])
    large = pod("p", container("app", {names.GPU_CORE: 30, "memory": "16Gi"}))
    assert helping(large, there, BINPACK) == ()


def test_a_pod_that_waits_for_its_claim_gets_no_node() -> None:
    there = stock((node("n0", cards=1), 1, "T4"))
    there = Stock(there.nodes, there.gpus, [gpu_class()], [claim("c")], ())
    assert helping(claim_pod("p", "c"), there, BINPACK) == ()


def test_nothing_of_the_cluster_is_changed() -> None:
    there = scattered()
    before = rebuild(there.gpus, there.pods, [], (), there.nodes).ledger.snapshot()
    helping(asking("p", 70), there, BINPACK)
    assert rebuild(there.gpus, there.pods, [], (), there.nodes).ledger.snapshot() == before
