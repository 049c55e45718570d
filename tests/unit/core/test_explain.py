"""Why a pod waits, or why it is where it is."""

from egpu.core.explain import explain_pod
from egpu.core.placement.cache import SchedulerCache
from egpu.core.policies.registry import CLUSTER_NAMES, prefers
from egpu_base.api.kubernetes import Pod
from support.objects import (
    BINPACK,
    card,
    claim,
    claim_pod,
    cluster,
    container,
    ended,
    gpu_class,
    place,
    placed,
    pod,
    slice_pod,
)


def test_a_waiting_pod_is_explained_node_by_node_and_card_by_card() -> None:
    cache = cluster(nodes=2)
    place(cache, slice_pod("s", core=90))
    found = explain_pod(slice_pod("p", core=30), cache, ["n0"], BINPACK)
    assert found.state == "waiting"
    assert found.lines() == [
        "pod default/p: waits: none of 1 nodes has room for it",
        "  container app asks for 30 % and 2560 MiB of a card",
        "  node n0: container app asks for 30 % and 2560 MiB of a card, 0 of 1 cards can take it",
        "    card 0 (GPU-n0-0) has 10 % of compute free, 30 % needed",
    ]
    assert explain_pod(slice_pod("p"), cache, [], BINPACK).summary == "waits: the cluster has no node"


def test_a_pod_that_has_room_shows_scores() -> None:
    cache = cluster(nodes=2)
    place(cache, slice_pod("s"))
    found = explain_pod(slice_pod("p"), cache, ["n1", "n0"], BINPACK)
    assert found.state == "can-be-placed"
    assert [node for node, _ in found.scores] == ["n0", "n1"]


def test_a_placed_pod_shows_its_share_and_its_company() -> None:
    cache = cluster(nodes=3)
    place(cache, slice_pod("other"))
    place(cache, slice_pod("full", core=90), "n1")
    what = slice_pod("p")
    done = placed(what, place(cache, what))
    books = cache.ledger.snapshot()
    assert explain_pod(done, cache, ["n0", "n1", "n2"], BINPACK).lines() == [
        "pod default/p: is on node n0",
        "  container app has 20 % and 2560 MiB of card 0 T4 (GPU-n0-0), by elasticgpu.io/vcuda (Guaranteed); 1 more "
        "shares it",
        "  why there: of 2 nodes with room it is the best; policy binpack prefers the node with the fullest cards",
        "  if it were placed now (policy binpack for nodes, binpack for cards):",
        "  node n1: container app asks for 20 % and 2560 MiB of a card, 0 of 1 cards can take it",
        "    card 0 (GPU-n1-0) has 10 % of compute free, 20 % needed",
        "  node n0: fits, score 1.00",
        "  node n2: fits, score 0.00",
    ]
    assert cache.ledger.snapshot() == books
    assert explain_pod(ended(done), cache, ["n0"], BINPACK).state == "finished"


def why_there(cache: SchedulerCache, what: Pod, node: str, *nodes: str) -> str:
    done = placed(what, place(cache, what, node))
    (line,) = [line for line in explain_pod(done, cache, nodes, BINPACK).details if line.startswith("why there: ")]
    return line.removeprefix("why there: ")


def test_a_placed_pod_says_why_its_node_was_chosen() -> None:
    cache = cluster(nodes=3)
    assert why_there(cache, slice_pod("one", core=90), "n0", "n0") == "no other of 1 nodes has room for it"
    assert why_there(cache, slice_pod("two"), "n2", "n0", "n1", "n2") == (
        "it was the best then, and is number 2 of 2 nodes with room now; "
        "policy binpack prefers the node with the fullest cards"
    )
    cache.gpu_changed(card("n2", 0, healthy=False))
    assert why_there(cache, slice_pod("three"), "n1", "n1", "n2") == "no other of 2 nodes has room for it"
    cache.class_changed(gpu_class(wait=True))
    cache.claim_changed(claim("c"))
    assert why_there(cache, claim_pod("p", "c"), "n1", "n1") == "its claim c has its cards there"


def test_every_policy_says_what_it_prefers() -> None:
    assert all(prefers(name).split()[0] in ("with", "where", "whose", "that") for name in ("default", *CLUSTER_NAMES))


def test_memory_that_may_be_allocated_beyond_the_share_is_said() -> None:
    cache = cluster()
    cache.class_changed(gpu_class(wait=True, parameters={"memoryOversubscription": "1.5"}))
    cache.claim_changed(claim("c"))
    what = claim_pod("p", "c")
    done = placed(what, place(cache, what))
    assert (
        explain_pod(done, cache, ["n0"], BINPACK)
        .details[0]
        .startswith(
            "container app has 30 % and 4096 MiB (it may allocate 6144 MiB, the rest in managed memory) of card 0 T4"
        )
    )


def test_other_states_say_what_they_are() -> None:
    cache = cluster()
    assert explain_pod(pod("p", container("app")), cache, ["n0"], BINPACK).state == "no-gpu"
    assert explain_pod(pod("p", container("app", {"nvidia.com/gpu": -1})), cache, ["n0"], BINPACK).state == "invalid"
    cache.class_changed(gpu_class())
    cache.claim_changed(claim("c"))
    waiting = explain_pod(claim_pod("p", "c"), cache, ["n0"], BINPACK)
    assert (waiting.state, "claim c, which is not bound" in waiting.summary) == ("waiting", True)
