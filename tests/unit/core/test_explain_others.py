"""Explanations of claims and nodes."""

from msgspec.structs import replace

from egpu.api import names
from egpu.api.objects import ElasticGPUClaim
from egpu.core.explain import Explanation
from egpu.core.explain_claim import explain_claim
from egpu.core.explain_node import MOST_PODS, explain_node
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.requests import claim_allocations
from egpu_base.api.kubernetes import Node, NodeSpec, NodeStatus, Pod
from egpu_base.api.objects import Condition, ObjectMeta
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
    pod,
    slice_pod,
)

ASKS = "it asks for 30 % and 4096 MiB of a card"


def explained(cache: SchedulerCache, what: ElasticGPUClaim, *nodes: str) -> Explanation:
    cache.claim_changed(what)
    return explain_claim(what, cache, nodes, BINPACK)


def test_a_claim_waits_for_its_class_and_for_room() -> None:
    cache = cluster()
    assert explained(cache, claim("c"), "n0").lines() == [
        "claim default/c: cannot be bound: spec.egpuClassName: ElasticGPUClass 'shared' does not exist; "
        "existing classes: none",
        "  its class shared does not exist",
        "  no pod uses it",
    ]
    cache.class_changed(gpu_class())
    found = explained(cache, claim("c"), "n0")
    assert (found.state, found.summary) == ("pending", "is not bound yet; 1 of 1 nodes have room for it")
    assert found.lines()[1:] == [
        f"  {ASKS}",
        "  class shared: elasticgpu.io/vcuda, Immediate, Delete",
        "  no pod uses it",
        "  node n0: fits, score 1.00",
    ]
    place(cache, slice_pod("s", core=90))
    lines = explained(cache, claim("c"), "n0").lines()
    assert lines[0] == "claim default/c: waits: none of 1 nodes has room for it"
    assert lines[-1] == "    card 0 (GPU-n0-0) has 10 % of compute free, 30 % needed"


def test_a_claim_waits_for_its_first_pod() -> None:
    cache = cluster()
    cache.class_changed(gpu_class(wait=True))
    assert explained(cache, claim("c"), "n0").summary == (
        "waits for the first pod that uses it; its cards are chosen for that pod; 1 of 1 nodes have room for it"
    )


def test_a_bound_claim_shows_its_cards_and_users() -> None:
    cache = cluster()
    cache.class_changed(gpu_class(wait=True))
    cache.claim_changed(claim("c"))
    what = claim_pod("p", "c")
    request = cache.request(what)
    given = claim_allocations(request, cache.ranking.choose(request, "n0", BINPACK))["c"]
    used = claim("c")
    used = replace(used, status=replace(used.status, phase="Bound", allocation=given, used_by=["p/app"]))
    assert explained(cache, used, "n0").lines() == [
        "claim default/c: has its cards on node n0",
        "  it has 30 % and 4096 MiB of card 0 T4 (GPU-n0-0), by elasticgpu.io/vcuda (Guaranteed)",
        "  class shared: elasticgpu.io/vcuda, WaitForFirstConsumer, Delete",
        "  used by p/app",
    ]
    lost = replace(used, status=replace(used.status, phase="Lost"))
    assert explained(cache, lost, "n0").summary.endswith("Delete it and create it again")


def waiting(name: str, core: int = 20) -> Pod:
    return pod(name, container("app", {CORE: core, MEMORY: 10}), annotations={names.DEMAND: "{}"})


def node(*, ready: bool = True, unschedulable: bool = False) -> Node:
    state = Condition(type="Ready", status="True" if ready else "Unknown")
    return Node(
        metadata=ObjectMeta(name="n0"),
        spec=NodeSpec(unschedulable=unschedulable),
        status=NodeStatus(conditions=[state]),
    )


def test_a_node_shows_its_cards_and_the_pods_that_do_not_fit() -> None:
    cache = cluster(cards=2)
    place(cache, slice_pod("s", core=90))
    cache.gpu_changed(card("n0", 1, healthy=False))
    assert explain_node(node(), cache, [waiting("p", 30), waiting("q", 5)]).lines() == [
        "node n0: takes new GPU pods",
        "  card 0 T4 (GPU-n0-0): 10 % and 13824 MiB free, elasticgpu.io/vcuda; held by pod default/s",
        "  card 1 T4 (GPU-n0-1): 100 % and 16 GiB free, takes no new work: it is unhealthy",
        "  pod default/p waits: container app asks for 30 % and 2560 MiB of a card, 0 of 2 cards can take it: "
        "card 0 has 10 % of compute free, 30 % needed; card 1 is unhealthy",
        "  pod default/q waits: this node has the cards for it",
    ]
    many = explain_node(node(), cache, [waiting(f"p{number}") for number in range(MOST_PODS + 3)])
    assert many.details[-1] == "and 3 more pods wait"


def test_a_node_that_takes_nothing_says_why() -> None:
    cache = cluster()
    assert explain_node(node(ready=False), cache, []).summary == "takes no new GPU pods: it is not ready"
    assert "kubectl uncordon n0" in explain_node(node(unschedulable=True), cache, []).summary
    cache.gpu_changed(card("n0", 0, healthy=False))
    assert "none of its cards takes new work" in explain_node(node(), cache, []).summary
    cache.gpu_deleted("n0-card0")
    assert "its agent publishes no cards" in explain_node(node(), cache, []).summary
