"""Fit's own answers, exactly: how full nodes become, which columns are chosen, and what is found where greed fails."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, ContainerDemand, PodAllocation, PodDemand
from egpu.api.objects import ClaimAllocation
from egpu.core.placement import fit
from egpu.core.placement.ledger import Card, Holder, Ledger, NodeCards, PoolNode
from egpu.core.placement.requests import Request
from egpu_base.errors import DoesNotFit

TOTAL_MIB = 10_000


def ledger_of(*held: tuple[int, int], node: str = "n0", unhealthy: int | None = None) -> Ledger:
    """A node with a card per pair of compute (percent) and memory (MiB) that others hold of it."""
    ledger = Ledger()
    add_node(ledger, node, *held, unhealthy=unhealthy)
    return ledger


def add_node(ledger: Ledger, node: str, *held: tuple[int, int], unhealthy: int | None = None) -> None:
    cards = [Card(f"{node}-{i}", i, i, TOTAL_MIB, model="T4", healthy=i != unhealthy) for i in range(len(held))]
    ledger.set_node(NodeCards(node, tuple(cards)))
    for index, (core, memory_mib) in enumerate(held):
        share = CardShare(uuid=f"{node}-{index}", index=index, minor=index, core=core, memory_mib=memory_mib)
        given = ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=(share,))
        if core or memory_mib:
            ledger.hold(Holder("pod", share.uuid), PodAllocation(node=node, containers={"app": given}))


def share(core: int, memory_mib: int, *, cards: int = 1, provisioner: str = names.VCUDA) -> ContainerDemand:
    return ContainerDemand(provisioner=provisioner, cards=cards, core=core, memory_mib=memory_mib)


def request(*init: str, **containers: ContainerDemand) -> Request:
    return Request(PodDemand(containers=containers, init=init))


def columns(allocation: PodAllocation) -> dict[str, list[int]]:
    return {name: [card.index for card in given.cards] for name, given in allocation.containers.items()}


# --- how full -------------------------------------------------------------------------------------------------------


def test_a_node_is_as_full_as_its_cards_are_with_the_request_on_them() -> None:
    ledger = ledger_of((20, 1000), (0, 0))
    add_node(ledger, "n1", (0, 0))
    add_node(ledger, "full", (90, 9000), (90, 9000))
    found = fit.fullness(request(app=share(20, 3000)), ledger, ["n1", "elsewhere", "full", "n0"])
    # On n0 it joins what is on card 0, (40 % + 40 %) / 2, and card 1 stays empty.
    assert found.tolist() == pytest.approx([(0.2 + 0.3) / 2, 0, 0, 0.4 / 2])


def test_cards_that_take_nothing_new_do_not_count() -> None:
    found = fit.fullness(request(app=share(20, 3000)), ledger_of((0, 0), (80, 8000), unhealthy=1), ["n0"])
    assert found.tolist() == pytest.approx([0.25])


def test_the_fullest_moment_counts_init_containers_included() -> None:
    pod = request("warm", app=share(20, 3000), warm=share(60, 1000))
    assert fit.fullness(pod, ledger_of((0, 0)), ["n0"]).tolist() == pytest.approx([(0.6 + 0.3) / 2])


def test_a_request_that_waits_makes_no_node_full() -> None:
    waiting = replace(request(app=share(20, 3000)), waiting="for its claim")
    assert fit.fullness(waiting, ledger_of((20, 1000)), ["n0", "elsewhere"]).tolist() == [0.0, 0.0]


POOLED = share(20, 3000, provisioner=names.POOL)


def test_for_cards_of_the_pool_the_nearer_node_is_better_and_one_outside_is_none() -> None:
    ledger = ledger_of((0, 0))
    ledger.pool = {"n0": PoolNode(10_000, serving=True), "cpu": PoolNode(5_000, serving=False)}
    found = fit.fullness(request(app=POOLED), ledger, ["outside", "cpu", "n0"])
    assert found.tolist() == [0.0, 0.25, 1.0]


def test_where_a_container_needs_the_nodes_own_cards_those_count() -> None:
    ledger = ledger_of((0, 0), (0, 0))
    ledger.pool = {"n0": PoolNode(10_000, serving=True)}
    found = fit.fullness(request(app=share(20, 3000), helper=POOLED), ledger, ["n0"])
    assert found.tolist() == pytest.approx([0.25 / 2])


# --- whether --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [{}, {"cpu": PoolNode(10_000, serving=True)}], ids=["no pool", "no server"])
def test_without_a_server_nothing_of_the_pool_fits(pool: dict[str, PoolNode]) -> None:
    ledger = Ledger()
    ledger.pool = pool
    found = fit.fits(request(app=POOLED), ledger, ["cpu"])
    assert (found.tolist(), found.dtype) == ([False], np.dtype(np.bool_))
    assert fit.fits(request(app=POOLED), ledger, []).shape == (0,)


def test_two_containers_fit_where_only_the_search_finds_their_place() -> None:
    """b is placed first, on the fuller card 1, which is the only one that a fits on."""
    ledger = ledger_of((50, 1000), (40, 6000))
    pair = request(a=share(60, 500), b=share(50, 1000))
    assert fit.fits(pair, ledger, ["n0"]).tolist() == [True]
    assert columns(fit.choose(pair, ledger, "n0")) == {"a": [1], "b": [0]}


def test_the_search_leaves_unhealthy_cards_alone() -> None:
    pair = request(a=share(60, 500), b=share(50, 1000))
    assert fit.fits(pair, ledger_of((40, 1000), (0, 0), unhealthy=1), ["n0"]).tolist() == [False]
    assert fit.fits(pair, ledger_of((40, 1000), (0, 0)), ["n0"]).tolist() == [True]


# --- which ----------------------------------------------------------------------------------------------------------


def test_preferred_cards_are_taken_where_nothing_is_known_of_links() -> None:
    ledger = ledger_of((10, 1000), (10, 1000), (0, 0), (0, 0))
    two = request(app=share(20, 1000, cards=2))
    assert columns(fit.choose(two, ledger, "n0")) == {"app": [0, 1]}
    assert columns(fit.choose(two, ledger, "n0", (3, 2))) == {"app": [2, 3]}


def test_a_preference_that_leaves_no_place_gives_way_to_the_fullest_cards() -> None:
    """b on card 2, as preferred, leaves no card for a."""
    ledger = ledger_of((50, 1000), (50, 6000), (40, 1000))
    pair = request(a=share(60, 500), b=share(50, 1000))
    assert columns(fit.choose(pair, ledger, "n0", (2,))) == {"a": [2], "b": [1]}


def test_an_allocation_says_all_that_the_demand_does_and_what_the_cards_are() -> None:
    demand = ContainerDemand(
        provisioner=names.VCUDA,
        core=30,
        memory_mib=2000,
        class_name="shared",
        claim="c",
        vocabulary="elasticgpu",
        core_limit=100,
        memory_limit_percent=150,
    )
    given = CardShare(uuid="n0-1", index=1, minor=1, core=30, memory_mib=2000, model="T4", card_memory_mib=TOTAL_MIB)
    assert fit.choose(request(app=demand), ledger_of((80, 0), (0, 0)), "n0") == PodAllocation(
        node="n0",
        containers={
            "app": ContainerAllocation(
                provisioner=names.VCUDA,
                mode="shared",
                class_name="shared",
                claim="c",
                core_limit=100,
                memory_limit_percent=150,
                vocabulary="elasticgpu",
                cards=(given,),
            )
        },
    )


def test_a_preference_that_leaves_the_pool_no_card_gives_way() -> None:
    """A card has one technology: what is preferred for the one container would leave none for the other, of the pool,
    so both get what fit had in mind when it said yes."""
    ledger = ledger_of((50, 0), (0, 0))
    ledger.pool["n0"] = PoolNode(10_000, True)
    asked = request(own=share(40, 1000), far=share(30, 2000, provisioner=names.POOL))
    for preferred in ((), (0,), (1,)):
        given = fit.choose(asked, ledger, "n0", preferred).containers
        assert [one.index for one in given["own"].cards] == [0], preferred
        assert [one.index for one in given["far"].cards] == [1], preferred
        assert given["far"].server == "n0"


def claim_on(node: str, provisioner: str = names.VCUDA) -> ClaimAllocation:
    """A claim that holds a part of the first card of the node."""
    held = CardShare(uuid=f"{node}-0", index=0, minor=0, core=10, memory_mib=100)
    return ClaimAllocation(
        node=node, container=ContainerAllocation(provisioner=provisioner, mode="shared", cards=(held,))
    )


def using(**claims: ClaimAllocation) -> Request:
    """A pod with a container for each claim, which is called like its container."""
    demands = {name: ContainerDemand(provisioner=names.VCUDA, claim=f"claim-{name}") for name in claims}
    return Request(PodDemand(containers=demands), bound=claims)


@pytest.mark.parametrize("provisioner", [names.VCUDA, names.POOL])
def test_a_pod_goes_where_all_of_its_claims_can_be_used(provisioner: str) -> None:
    ledger = ledger_of((0, 0))
    add_node(ledger, "n1", (0, 0))
    for node in ("n0", "n1"):
        ledger.pool[node] = PoolNode(10_000, True)
    nodes = ["n0", "n1"]
    far = claim_on("n1", provisioner)
    anywhere = provisioner == names.POOL
    assert fit.fits(using(a=claim_on("n0"), b=far), ledger, nodes).tolist() == [anywhere, False]
    assert fit.fits(using(b=far, a=claim_on("n0")), ledger, nodes).tolist() == [anywhere, False]


def test_a_container_that_uses_a_claim_says_which() -> None:
    given = fit.choose(using(a=claim_on("n0")), ledger_of((0, 0)), "n0").containers["a"]
    assert (given.claim, given.cards[0].uuid) == ("claim-a", "n0-0")


def test_of_several_preferred_cards_the_fullest_is_taken() -> None:
    given = fit.choose(request(app=share(10, 100)), ledger_of((0, 0), (30, 0), (60, 0)), "n0", (0, 1))
    assert [one.index for one in given.containers["app"].cards] == [1]


def test_equal_cards_are_taken_from_the_first_on() -> None:
    """Of many, too: a sort that moves equal cards would give others for every size of node."""
    ledger = ledger_of(*[(0, 0)] * 40)
    given = fit.choose(request(app=share(10, 100, cards=5)), ledger, "n0")
    assert [one.index for one in given.containers["app"].cards] == [0, 1, 2, 3, 4]


def test_what_waits_is_placed_nowhere() -> None:
    waits = replace(request(app=share(10, 100)), waiting="the claim is not bound")
    with pytest.raises(DoesNotFit, match="the claim is not bound"):
        fit.choose(waits, ledger_of((0, 0)), "n0")


HELD = st.tuples(st.sampled_from([0, 30, 60, 100]), st.sampled_from([0, 3000, 9000]))


@given(
    held=st.lists(HELD, min_size=1, max_size=5),
    asked=st.builds(share, st.sampled_from([10, 50]), st.sampled_from([100, 5000]), cards=st.integers(1, 2)),
    exclusive=st.booleans(),
    init=st.booleans(),
    preferred=st.permutations(range(5)),
    unhealthy=st.integers(0, 5),
)
def test_cards_preferred_for_all_that_is_asked_are_those_that_are_taken_one_by_one(
    *,
    held: list[tuple[int, int]],
    asked: ContainerDemand,
    exclusive: bool,
    init: bool,
    preferred: list[int],
    unhealthy: int,
) -> None:
    ledger = ledger_of(*held, unhealthy=unhealthy)
    demand = structs.replace(asked, exclusive=True, core=100, memory_mib=0) if exclusive else asked
    what = request(*(["app"] if init else []), app=demand)
    liked = tuple(column for column in preferred if column < len(held))[: asked.cards]

    def answer() -> PodAllocation | None:
        try:
            return fit.choose(what, ledger, "n0", liked)
        except DoesNotFit:
            return None

    at_once = answer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "_as_preferred", lambda *_: None)
        assert answer() == at_once
