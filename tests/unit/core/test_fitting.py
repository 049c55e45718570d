"""Where pods fit, which cards they get, and the sentences when they do not."""

import pytest

from egpu.api.allocation import PodAllocation
from egpu.core.placement.cache import rebuild
from egpu.core.placement.ranking import SECOND_BEST
from egpu.core.policies.registry import FOR_COMPARISON, Policies
from egpu_base.api.kubernetes import Node, NodeStatus
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import DoesNotFit, InvalidInput
from support.objects import (
    BINPACK,
    CORE,
    MEMORY,
    SPREAD,
    card,
    cluster,
    container,
    fits,
    place,
    pod,
    slice_pod,
    why_not,
)


def indexes(allocation: PodAllocation, name: str = "app") -> list[int]:
    return [share.index for share in allocation.containers[name].cards]


def test_a_slice_takes_what_it_asks_for_and_nothing_else() -> None:
    cache = cluster(cards=2)
    allocation = place(cache, slice_pod("p"))
    (share,) = allocation.containers["app"].cards
    assert (share.index, share.core, share.memory_mib, share.card_memory_mib) == (0, 20, 2560, 16384)
    assert cache.ledger.snapshot()[("n0", "GPU-n0-0")] == (80, 13824, "elasticgpu.io/vcuda", True)
    assert cache.ledger.snapshot()[("n0", "GPU-n0-1")] == (100, 16384, "", True)


def test_binpack_fills_a_card_and_spread_takes_the_emptiest() -> None:
    packed, spread = cluster(cards=2), cluster(cards=2)
    place(packed, slice_pod("a"))
    place(spread, slice_pod("a"), policies=SPREAD)
    assert indexes(place(packed, slice_pod("b"))) == [0]
    assert indexes(place(spread, slice_pod("b"), policies=SPREAD)) == [1]


def test_binpack_prefers_the_used_node_and_spread_the_empty_one() -> None:
    cache = cluster(nodes=2)
    place(cache, slice_pod("a"))
    request = cache.request(slice_pod("b"))
    packed = cache.ranking.scores(request, ["n0", "n1"], BINPACK)
    spread = cache.ranking.scores(request, ["n0", "n1"], SPREAD)
    assert packed["n0"] > packed["n1"]
    assert spread["n0"] < spread["n1"]
    assert all(0 <= score <= 1 for score in [*packed.values(), *spread.values()])


def test_one_place_is_best_where_no_policy_has_a_view_too() -> None:
    """CPU is short by what is known, so the fullest place is best, and of equals the first."""
    cache = cluster(nodes=3)
    for node in ("n0", "n1", "n2"):
        cache.node_changed(Node(metadata=ObjectMeta(name=node), status=NodeStatus(allocatable={"cpu": "1"})))
    place(cache, slice_pod("a"))
    request = cache.request(pod("b", container("app", {"cpu": 2, CORE: 20, MEMORY: 10})))
    first, best, other = cache.ranking.rated(request, ["n2", "n0", "n1"], BINPACK).tolist()
    assert best == 1
    assert 0 < first == other < SECOND_BEST
    assert cache.ranking.rated(request, ["n2", "n1"], BINPACK).tolist() == [1, first]


def test_a_policy_that_no_cluster_can_use_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="policy 'best' does not exist; choose one of default, price"):
        Policies.named("best")
    for name in FOR_COMPARISON:
        with pytest.raises(InvalidInput, match=f"'{name}' is for simulations only"):
            Policies.named(card=name)


def test_whole_cards_and_slices_keep_out_of_each_others_way() -> None:
    cache = cluster(cards=3)
    place(cache, slice_pod("s"))
    whole = pod("w", container("app", {"nvidia.com/gpu": 2}))
    assert indexes(place(cache, whole)) == [1, 2]
    text = why_not(cache, pod("x", container("app", {"nvidia.com/gpu": 1})))
    assert "asks for 1 whole card, 0 of 3 cards can take it" in text
    assert "card 0 is shared (20 % and 2560 MiB allocated)" in text
    assert "card 1 is allocated whole" in text


def test_a_card_is_shared_by_one_technology_at_a_time() -> None:
    cache = cluster()
    place(cache, slice_pod("s"))
    text = why_not(cache, pod("x", container("app", {"aliyun.com/gpu-mem": 1})))
    assert "card 0 has slices of elasticgpu.io/vcuda" in text


def test_reasons_name_what_is_free_and_what_is_needed() -> None:
    cache = cluster()
    place(cache, slice_pod("s", core=80, blocks=56))
    text = why_not(cache, slice_pod("x", core=30, blocks=10))
    assert "container app asks for 30 % and 2560 MiB of a card" in text
    assert "has 20 % of compute free, 30 % needed and 2048 MiB of 16 GiB free, 2560 MiB needed" in text


def test_preemption_cannot_help_where_no_card_is_large_enough() -> None:
    cache = cluster()
    place(cache, slice_pod("s", core=80))
    small = cache.filter(cache.request(slice_pod("x", core=30)), ["n0", "nowhere"]).refusals()
    assert small["n0"].resolvable
    assert not small["nowhere"].resolvable
    assert "no GPU known" in small["nowhere"].reason
    big = cache.filter(cache.request(slice_pod("x", blocks=65)), ["n0"]).refusals()["n0"]
    assert not big.resolvable
    assert "card 0 has 16 GiB in all" in big.text()


def test_an_unhealthy_card_takes_nothing_new_keeps_its_holder_and_comes_back() -> None:
    cache = cluster()
    place(cache, slice_pod("s"))
    cache.gpu_changed(card("n0", 0, healthy=False))
    assert "card 0 is unhealthy" in why_not(cache, slice_pod("x"))
    assert cache.ledger.snapshot()[("n0", "GPU-n0-0")][:2] == (80, 13824)
    cache.gpu_changed(card("n0", 0))
    assert fits(cache, slice_pod("x", core=80)) == ("n0",)
    assert fits(cache, slice_pod("x", core=81)) == ()


def test_a_card_that_comes_back_still_has_its_holders() -> None:
    cache = cluster(cards=2)
    place(cache, slice_pod("s"))
    cache.gpu_deleted("n0-card0")
    assert [c.index for c in cache.ledger.cards("n0")] == [1]
    cache.gpu_deleted("n0-card1")
    assert fits(cache, slice_pod("x")) == ()
    cache.gpu_changed(card("n0", 0))
    assert cache.ledger.snapshot()[("n0", "GPU-n0-0")][:2] == (80, 13824)


def test_tflops_become_a_share_of_the_card_at_hand() -> None:
    cache = rebuild([card("n0", 0, tflops=8.0), card("n1", 0, tflops=19.5), card("n2", 0, tflops=2.0)], [], [])
    ask = pod("t", container("app", {"elasticgpu.io/tflops": 4}))
    assert fits(cache, ask, "n0", "n1", "n2") == ("n0", "n1")
    (share,) = cache.ranking.choose(cache.request(ask), "n0", BINPACK).containers["app"].cards
    assert (share.core, share.memory_mib) == (50, 8192)
    (share,) = cache.ranking.choose(cache.request(ask), "n1", BINPACK).containers["app"].cards
    assert share.core == 21
    assert "has 2 TFLOPS (fp32) in all" in why_not(cache, ask, "n2")


def test_compute_without_memory_brings_memory_in_proportion() -> None:
    cache = cluster(memory_mib=10001)
    (share,) = place(cache, pod("p", container("app", {CORE: 30}))).containers["app"].cards
    assert share.memory_mib == 3000
    for number in range(7):
        place(cache, pod(f"q{number}", container("app", {CORE: 10})))
    assert cache.ledger.snapshot()[("n0", "GPU-n0-0")][0] == 0


def test_each_container_of_a_pod_has_its_own_share() -> None:
    cache = cluster(cards=2)
    both = pod("p", container("a", {CORE: 60, MEMORY: 8}), container("b", {CORE: 60, MEMORY: 8}))
    allocation = place(cache, both)
    assert {indexes(allocation, "a")[0], indexes(allocation, "b")[0]} == {0, 1}


def test_memory_of_a_pods_containers_adds_up_on_a_card() -> None:
    halves = pod("p", container("a", {CORE: 10, MEMORY: 33}), container("b", {CORE: 10, MEMORY: 33}))
    assert fits(cluster(), halves) == ()
    allocation = place(cluster(cards=2), halves)
    assert indexes(allocation, "a") != indexes(allocation, "b")


def test_a_place_that_greedy_packing_misses_is_found() -> None:
    """Card 0 has 60 % left, which only a fills; packing b there first, as it is the largest, leaves no room for a."""
    cache = cluster(cards=2)
    place(cache, slice_pod("s", core=40, blocks=1))
    crowd = pod(
        "p",
        container("a", {CORE: 60, MEMORY: 4}),
        container("b", {CORE: 50, MEMORY: 30}),
        container("c", {CORE: 50, MEMORY: 20}),
    )
    for policies in (BINPACK, SPREAD):
        assert fits(cache, crowd) == ("n0",)
        allocation = cache.ranking.choose(cache.request(crowd), "n0", policies)
        assert [indexes(allocation, name) for name in "abc"] == [[0], [1], [1]]


def test_the_search_lets_an_init_container_own_what_only_its_pod_shares() -> None:
    cache = cluster(cards=2)
    place(cache, slice_pod("s", core=40, blocks=1))
    crowd = pod(
        "p",
        container("a", {CORE: 60, MEMORY: 4}),
        container("b", {CORE: 50, MEMORY: 30}),
        container("c", {CORE: 50, MEMORY: 20}),
        init=[container("warm", {"nvidia.com/gpu": 1})],
    )
    allocation = place(cache, crowd)
    assert indexes(allocation, "warm") == [1]
    assert cache.problems() == []


def test_containers_that_fit_alone_but_not_together() -> None:
    cache = cluster()
    both = pod("p", container("a", {CORE: 60, MEMORY: 8}), container("b", {CORE: 60, MEMORY: 8}))
    assert "each container fits alone" in why_not(cache, both)
    with pytest.raises(DoesNotFit, match="each container fits alone"):
        cache.ranking.choose(cache.request(both), "n0", BINPACK)


def test_an_init_container_uses_what_its_pod_gets_anyway() -> None:
    cache = cluster(cards=2)
    what = pod("p", container("app", {CORE: 60, MEMORY: 8}), init=[container("warm", {CORE: 40, MEMORY: 20})])
    allocation = place(cache, what)
    assert indexes(allocation, "warm") == indexes(allocation, "app") == [0]
    assert cache.ledger.snapshot()[("n0", "GPU-n0-0")][:2] == (40, 16384 - 20 * 256)


def test_sidecars_run_beside_both() -> None:
    cache = cluster()
    what = pod(
        "p",
        container("app", {CORE: 50, MEMORY: 8}),
        init=[container("side", {CORE: 30, MEMORY: 8}, sidecar=True), container("warm", {CORE: 70, MEMORY: 8})],
    )
    place(cache, what)
    assert cache.ledger.snapshot()[("n0", "GPU-n0-0")][0] == 0
    too_much = pod(
        "q",
        container("app", {CORE: 50, MEMORY: 8}),
        init=[container("side", {CORE: 30, MEMORY: 8}, sidecar=True), container("warm", {CORE: 71, MEMORY: 8})],
    )
    assert fits(cluster(), too_much) == ()


def test_an_init_container_does_not_wait_for_the_room_of_a_later_sidecar() -> None:
    cache = cluster()
    what = pod(
        "p",
        container("app", {CORE: 20, MEMORY: 8}),
        init=[container("warm", {CORE: 100, MEMORY: 8}), container("side", {CORE: 30, MEMORY: 8}, sidecar=True)],
    )
    place(cache, what)
    assert cache.ledger.snapshot()[("n0", "GPU-n0-0")][0] == 0
    swapped = pod("q", container("app", {CORE: 20, MEMORY: 8}), init=what.init_containers[::-1])
    assert fits(cluster(), swapped) == ()


def test_an_init_container_may_own_a_card_that_its_pod_then_shares() -> None:
    cache = cluster()
    what = pod("p", container("app", {CORE: 20, MEMORY: 8}), init=[container("warm", {"nvidia.com/gpu": 1})])
    place(cache, what)
    assert cache.ledger.snapshot()[("n0", "GPU-n0-0")] == (0, 0, "exclusive", True)
    assert cache.problems() == []
    cache.pod_deleted("uid-p")
    assert cache.ledger.snapshot()[("n0", "GPU-n0-0")] == (100, 16384, "", True)


def test_an_init_container_of_another_technology_waits_for_another_card() -> None:
    what = pod("p", container("app", {CORE: 20, MEMORY: 8}), init=[container("warm", {"aliyun.com/gpu-mem": 1})])
    assert fits(cluster(), what) == ()
    assert indexes(place(cluster(cards=2), what), "warm") == [1]


def test_qgpu_shares_a_card_with_its_own_kind_only() -> None:
    qgpu = {"tke.cloud.tencent.com/qgpu-core": 10, "tke.cloud.tencent.com/qgpu-memory": 4}
    both = pod("p", container("app", {CORE: 20, MEMORY: 8}), container("other", qgpu))
    assert fits(cluster(), pod("q", container("app", qgpu), container("more", qgpu))) != ()
    assert fits(cluster(), both) == ()
    assert fits(cluster(cards=2), both) != ()


def test_a_pod_without_gpu_fits_everywhere_and_gets_nothing() -> None:
    cache = cluster()
    plain = pod("p", container("app"))
    assert fits(cache, plain, "n0", "nowhere") == ("n0", "nowhere")
    assert cache.ranking.choose(cache.request(plain), "nowhere", BINPACK).containers == {}


def test_asking_changes_nothing() -> None:
    cache = cluster(nodes=2, cards=2)
    before = cache.ledger.snapshot()
    request = cache.request(slice_pod("p"))
    cache.filter(request, ["n0", "n1"])
    cache.ranking.scores(request, ["n0", "n1"], BINPACK)
    cache.ranking.choose(request, "n0", BINPACK)
    assert cache.ledger.snapshot() == before
