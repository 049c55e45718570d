"""Cards of other nodes: which pods get which, and that every share is counted on the card that it is of."""

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.objects import ClaimAllocation
from egpu.core.explain import explain_pod
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu.core.placement.requests import CLAIM_CONTAINER, claim_allocations
from egpu_base.api.kubernetes import Node, NodeSpec, NodeStatus, Pod
from egpu_base.api.objects import Condition, ObjectMeta
from support.objects import (
    BINPACK,
    CORE,
    MEMORY,
    SPREAD,
    card,
    claim,
    claim_pod,
    container,
    fits,
    gpu_class,
    place,
    placed,
    pod,
    slice_pod,
    why_not,
)

POOL = {names.POOL_CORE: 50, names.POOL_MEMORY: 4096}
NODES = ("cpu", "g0", "g1")


def node(name: str, *, link: int = 10_000, ready: bool = True, pool: bool = True, cordoned: bool = False) -> Node:
    annotations = {names.POOL_ADDRESS: f"{name}:7434", names.POOL_LINK: str(link)} if pool else {}
    return Node(
        metadata=ObjectMeta(name=name, annotations=annotations),
        spec=NodeSpec(unschedulable=cordoned),
        status=NodeStatus(conditions=[Condition(type="Ready", status="True" if ready else "False")]),
    )


def cluster(*, cards: int = 1, links: tuple[int, int] = (10_000, 10_000)) -> SchedulerCache:
    """Two nodes with cards, g0 and g1, and one without, cpu."""
    gpus = [card(f"g{n}", index) for n in range(2) for index in range(cards)]
    return rebuild(gpus, [], [], [], [node("cpu"), *(node(f"g{n}", link=links[n]) for n in range(2))])


def remote(name: str, **asks: int) -> Pod:
    return pod(name, container("app", POOL | asks))


def served(cache: SchedulerCache, name: str, on: str = "cpu") -> tuple[str, str]:
    given = place(cache, remote(name), on).containers["app"]
    return given.server, given.cards[0].uuid


def free(cache: SchedulerCache, server: str) -> tuple[int, int]:
    core, memory, _, _ = cache.ledger.snapshot()[(server, f"GPU-{server}-0")]
    return core, memory


def test_a_pod_on_a_node_without_cards_gets_one_of_another_node_counted_there() -> None:
    cache = cluster()
    assert fits(cache, remote("p"), *NODES) == NODES
    server, uuid = served(cache, "p")
    assert uuid == f"GPU-{server}-0"
    assert free(cache, server) == (50, 16384 - 4096)
    assert cache.ledger.snapshot()[(server, uuid)][2] == names.POOL
    cache.pod_deleted("uid-p")
    assert free(cache, server) == (100, 16384)


def test_the_pods_own_node_comes_first_then_the_fastest_link_then_the_fullest() -> None:
    cache = cluster(links=(10_000, 100_000))
    assert served(cache, "a", on="g0")[0] == "g0"
    assert served(cache, "b", on="cpu")[0] == "g1"
    equal = cluster()
    first = served(equal, "a")[0]
    assert served(equal, "b")[0] == first, "the fullest that has room"
    assert served(equal, "c")[0] != first
    scores = cache.ranking.scores(cache.request(remote("c")), NODES, BINPACK)
    assert scores["g0"] == scores["g1"] == 1
    assert 0 < scores["cpu"] < 1


def test_never_more_than_there_is_over_the_whole_pool() -> None:
    cache = cluster()
    for number in range(4):
        served(cache, f"p{number}", on=NODES[number % 3])
    assert cache.problems() == []
    assert [free(cache, server)[0] for server in ("g0", "g1")] == [0, 0]
    text = why_not(cache, remote("late"), "cpu")
    assert "2 nodes with cards, none can take it" in text
    assert "card 0 of g0 has 0 % of compute free, 50 % needed" in text
    cache.pod_deleted("uid-p2")
    assert fits(cache, remote("late"), *NODES) == NODES


def test_a_card_of_the_pool_and_a_card_of_its_node_keep_out_of_each_others_way() -> None:
    cache = cluster()
    place(cache, slice_pod("own"), "g0")
    assert [served(cache, f"p{n}", on="g0")[0] for n in range(2)] == ["g1", "g1"]
    assert "card 0 of g0 has slices of elasticgpu.io/vcuda" in why_not(cache, remote("p"), "g0")
    assert "card 0 has slices of elasticgpu.io/pool" in why_not(cache, slice_pod("x"), "g1")


def test_nodes_outside_the_pool_neither_serve_nor_use_it_and_those_away_or_cordoned_do_not_serve() -> None:
    cache = cluster()
    cache.node_changed(node("cpu", pool=False))
    assert fits(cache, remote("p"), *NODES) == ("g0", "g1")
    assert "is not part of the pool" in why_not(cache, remote("p"), "cpu")
    cache.node_changed(node("cpu"))
    cache.node_changed(node("g0", ready=False))
    assert [served(cache, f"p{n}")[0] for n in range(2)] == ["g1", "g1"]
    assert fits(cache, remote("x"), *NODES) == ()
    cache.node_changed(node("g0", cordoned=True))
    assert fits(cache, remote("x"), "cpu") == ()
    cache.node_deleted("g1")
    assert "no node serves cards" in why_not(cache, remote("x"), "cpu")
    cache.node_changed(node("g0"))
    assert served(cache, "x")[0] == "g0"


def test_a_lost_server_gives_nothing_out_and_its_holders_count_again_when_it_is_back() -> None:
    cache = cluster()
    server, _ = served(cache, "p")
    cache.node_deleted(server)
    cache.gpu_deleted(f"{server}-card0")
    other = "g1" if server == "g0" else "g0"
    assert served(cache, "q")[0] == other
    cache.node_changed(node(server))
    cache.gpu_changed(card(server, 0))
    assert free(cache, server) == (50, 16384 - 4096)


def test_own_cards_and_the_pools_in_one_pod() -> None:
    cache = cluster()
    both = pod("p", container("own", {CORE: 60, MEMORY: 8}), container("far", POOL))
    assert fits(cache, both, *NODES) == ("g0", "g1")
    for policies in (BINPACK, SPREAD):
        allocation = cache.ranking.choose(cache.request(both), "g0", policies)
        assert (allocation.containers["own"].server, allocation.containers["far"].server) == ("", "g1")
    place(cache, remote("a", **{names.POOL_CORE: 60}), "g1")
    assert fits(cache, both, *NODES) == (), "g0 has its own work for g0's card, and g1's is too full"
    assert "each container fits alone" in why_not(cache, both, "g0")


def test_several_containers_and_several_cards_of_one_server() -> None:
    cache = cluster(cards=2)
    what = pod("p", container("a", {names.POOL_CORE: 200}), container("b", {names.POOL_CORE: 60, names.POOL_MEMORY: 1}))
    allocation = place(cache, what, "cpu")
    assert len(allocation.containers["a"].cards) == 2
    assert allocation.containers["a"].server != allocation.containers["b"].server
    assert fits(cache, pod("q", container("a", {names.POOL_CORE: 200})), "cpu") == ()
    assert cache.problems() == []


def test_a_restart_sees_what_was_given_out() -> None:
    cache = cluster()
    allocation = place(cache, remote("p"), "cpu")
    nodes = [node(name) for name in NODES]
    again = rebuild([card("g0", 0), card("g1", 0)], [placed(remote("p"), allocation)], [], [], nodes)
    assert again.ledger.snapshot() == cache.ledger.snapshot()


@pytest.mark.parametrize("wait", [True, False])
def test_a_claim_of_the_pool_holds_a_card_that_its_pod_uses_from_anywhere(wait: bool) -> None:
    cache = cluster()
    cache.class_changed(gpu_class("far", names.POOL, wait=wait))
    asked_for = claim("c", class_name="far")
    cache.claim_changed(asked_for)
    user = claim_pod("user", "c")
    if wait:
        allocation = cache.ranking.choose(cache.request(user), "cpu", BINPACK)
        held = claim_allocations(cache.request(user), allocation)["c"]
    else:
        chosen = cache.ranking.choose(cache.claim_request(asked_for), "cpu", BINPACK).containers[CLAIM_CONTAINER]
        held = ClaimAllocation(node=chosen.cards_node("cpu"), container=chosen)
    assert held.node == held.container.server == "g0"
    cache.claim_changed(replace(asked_for, status=replace(asked_for.status, phase="Bound", allocation=held)))
    assert free(cache, "g0") == (70, 16384 - 4096)
    assert fits(cache, user, *NODES) == NODES
    given = place(cache, user, "cpu")
    assert given.containers["app"].server == "g0"
    assert free(cache, "g0") == (70, 16384 - 4096), "counted once"
    cache.node_changed(node("g0", ready=False))
    cache.pod_deleted("uid-user")
    assert "does not serve its cards to the pool now" in why_not(cache, user, "cpu")


def test_explaining_names_the_node_that_serves() -> None:
    cache = cluster()
    allocation = place(cache, remote("p"), "cpu")
    server = allocation.containers["app"].server
    told = "\n".join(explain_pod(placed(remote("p"), allocation), cache, NODES, BINPACK).lines())
    assert "is on node cpu" in told
    assert f"of node {server}, by elasticgpu.io/pool" in told
