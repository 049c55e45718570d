"""Several cards of a container are those that are joined best, and what a demand requires of links holds."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import PodAllocation
from egpu.api.objects import ElasticGPU, Link
from egpu.core.admission import validate_class, validate_pod_create
from egpu.core.explain import explain_pod
from egpu.core.links import LEAST, best_set, joined, rank
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu.core.policies.registry import Policies
from egpu_base.api.kubernetes import Pod
from support.objects import (
    BINPACK,
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

Kinds = dict[tuple[int, int], str]


def linked(node: str, count: int, kinds: Kinds, default: str = "SYS") -> list[ElasticGPU]:
    """Cards joined as `kinds` says of each pair, elsewhere by `default`."""
    cards = [card(node, index) for index in range(count)]
    made: list[ElasticGPU] = []
    for at, one in enumerate(cards):
        physical = one.spec.physical_gpu
        assert physical is not None
        links = [
            Link(uuid=f"GPU-{node}-{other}", kind=kinds.get((min(at, other), max(at, other)), default))
            for other in range(count)
            if other != at
        ]
        made.append(replace(one, spec=replace(one.spec, physical_gpu=replace(physical, links=links))))
    return made


def ring(count: int) -> Kinds:
    """NVLink to both neighbours, as V100 machines of eight cards have it."""
    return {(min(at, (at + 1) % count), max(at, (at + 1) % count)): "NVLink" for at in range(count)}


def several(name: str, count: int, links: str = "") -> Pod:
    asks = container("app", {names.NVIDIA_GPU: count})
    return pod(name, asks, annotations={names.LINKS: links} if links else {})


def indexes(allocation: PodAllocation, name: str = "app") -> list[int]:
    return [share.index for share in allocation.containers[name].cards]


@pytest.mark.parametrize("policies", [BINPACK, SPREAD, Policies.named("price", "price")], ids=lambda one: one.node)
def test_two_cards_are_those_with_nvlink_whatever_the_policy(policies: Policies) -> None:
    cache = rebuild(linked("n0", 4, {(1, 3): "NVLink", (0, 2): "PIX"}), [], [])
    assert indexes(place(cache, several("a", 2), policies=policies)) == [1, 3]
    assert indexes(place(cache, several("b", 2), policies=policies)) == [0, 2]


def test_nvlink_is_above_pcie_and_pcie_above_the_way_between_sockets() -> None:
    order = ["NVLink", "PIX", "PXB", "PHB", "NODE", "SYS", "something"]
    assert sorted(order, key=rank, reverse=True) == order
    assert rank("NV4") == rank("NVLink")


def test_three_of_a_ring_are_neighbours() -> None:
    cache = rebuild(linked("n0", 8, ring(8)), [], [])
    place(cache, several("x", 1))
    assert indexes(place(cache, several("a", 3))) == [1, 2, 3]
    assert indexes(place(cache, several("b", 3))) == [4, 5, 6]


def test_shares_of_several_cards_are_of_joined_cards() -> None:
    cache = rebuild(linked("n0", 4, {(2, 3): "NVLink"}), [], [])
    place(cache, slice_pod("busy", core=40, blocks=1))
    asks = {names.GPU: 2, names.GPU_CORE: 50, names.GPU_MEMORY: 1024}
    assert indexes(place(cache, pod("p", container("app", asks)))) == [2, 3]


def test_where_nothing_is_known_of_links_the_policy_alone_decides() -> None:
    cache = rebuild([card("n0", index) for index in range(4)], [], [])
    assert indexes(place(cache, several("a", 2))) == [0, 1]


def test_required_links_are_required() -> None:
    cache = rebuild([*linked("n0", 4, {(0, 1): "NVLink"}, "NODE"), *[card("n1", index) for index in range(4)]], [], [])
    asking = several("a", 2, "nvlink")
    assert fits(cache, asking, "n0", "n1") == ("n0",)
    assert fits(cache, several("c", 3, "nvlink"), "n0", "n1") == ()
    assert fits(cache, several("c", 3, "numa"), "n0", "n1") == ("n0",)
    assert fits(cache, several("c", 3, "pcie"), "n0", "n1") == ()
    assert fits(cache, several("c", 3), "n0", "n1") == ("n0", "n1")
    assert indexes(place(cache, asking)) == [0, 1]
    text = why_not(cache, several("b", 2, "nvlink"))
    assert text == (
        "container app asks for 2 whole cards joined by NVLink, 2 of 4 cards can take it, no 2 of them are joined by"
        " NVLink"
    )
    refusal = cache.filter(cache.request(several("b", 2, "nvlink")), ["n0"]).refusals()["n0"]
    assert refusal.resolvable, "it would fit if the other pod left"
    assert "joined by NVLink" in why_not(cache, several("b", 2, "nvlink"), "n1")
    assert not cache.filter(cache.request(several("b", 2, "nvlink")), ["n1"]).refusals()["n1"].resolvable


def test_two_containers_that_both_need_links_are_searched_for() -> None:
    """Greedily, the first container would take 0 and 1, and no joined pair would be left."""
    cache = rebuild(linked("n0", 4, {(0, 1): "NVLink", (1, 2): "NVLink", (0, 3): "NVLink"}), [], [])
    both = pod(
        "p",
        container("a", {names.NVIDIA_GPU: 2}),
        container("b", {names.NVIDIA_GPU: 2}),
        annotations={names.LINKS: "nvlink"},
    )
    allocation = place(cache, both)
    assert sorted([indexes(allocation, "a"), indexes(allocation, "b")]) == [[0, 3], [1, 2]]


def test_a_class_can_require_links() -> None:
    klass = gpu_class("fast", names.PHYSICAL, wait=True, parameters={"links": "nvlink"})
    cache = rebuild(linked("n0", 3, {(1, 2): "NVLink"}), [], [claim("c", {names.GPU: 2}, "fast")], [klass])
    assert indexes(place(cache, claim_pod("p", "c"))) == [1, 2]
    (found,) = validate_class(gpu_class("odd", parameters={"links": "rope"}), None)
    assert str(found) == "parameters[links]: 'rope' is not one of nvlink, pcie, numa"


def test_a_requirement_that_cannot_be_meant_is_refused() -> None:
    (odd,) = validate_pod_create(several("a", 2, "rope"), {}, {})
    assert str(odd) == f"metadata.annotations[{names.LINKS}]: 'rope' is not one of nvlink, pcie, numa"
    (one,) = validate_pod_create(several("a", 1, "nvlink"), {}, {})
    assert (one.field, "asks for several cards" in one.reason) == (f"metadata.annotations[{names.LINKS}]", True)
    assert validate_pod_create(several("a", 2, "pcie"), {}, {}) == []


def test_explain_says_what_joins_a_pods_cards() -> None:
    cache = rebuild(linked("n0", 4, {(0, 1): "NVLink"}, "NODE"), [], [])
    asking = several("a", 2)
    allocation = place(cache, asking)
    shown = [line.strip() for line in explain_pod(placed(asking, allocation), cache, ["n0"], BINPACK).lines()]
    assert "container app's 2 cards are joined by NVLink" in shown


kinds = st.sampled_from(["NVLink", "PIX", "PHB", "NODE", "SYS"])


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(2, 7), st.sampled_from(["", *LEAST]))
def test_the_best_set_is_the_best_of_all(data: st.DataObject, count: int, links: str) -> None:
    ranks = [[0] * count for _ in range(count)]
    for a, b in combinations(range(count), 2):
        ranks[a][b] = ranks[b][a] = rank(data.draw(kinds))
    table = tuple(tuple(row) for row in ranks)
    wanted = data.draw(st.integers(2, count))
    candidates = data.draw(st.lists(st.sampled_from(range(count)), unique=True, min_size=wanted))

    def value(chosen: tuple[int, ...]) -> tuple[int, int]:
        pairs = [table[a][b] for a, b in combinations(chosen, 2)]
        return min(pairs), sum(pairs)

    possible = [chosen for chosen in combinations(candidates, wanted) if joined(table, chosen, links)]
    found = best_set(table, candidates, wanted, links)
    if not possible:
        assert found is None
    else:
        assert found is not None
        assert value(found) == max(map(value, possible))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(2, 6))
def test_what_a_filter_grants_can_be_chosen_and_meets_the_requirement(data: st.DataObject, count: int) -> None:
    made: Kinds = {pair: data.draw(kinds) for pair in combinations(range(count), 2)}
    cache: SchedulerCache = rebuild(linked("n0", count, made), [], [])
    links = data.draw(st.sampled_from(["", *LEAST]))
    for number in range(3):
        asks = [{names.NVIDIA_GPU: data.draw(st.integers(1, 3))} for _ in range(data.draw(st.integers(1, 2)))]
        annotations = {names.LINKS: links} if links and any(one[names.NVIDIA_GPU] > 1 for one in asks) else {}
        one = pod(f"p{number}", *(container(f"c{at}", ask) for at, ask in enumerate(asks)), annotations=annotations)
        if not fits(cache, one):
            continue
        allocation = place(cache, one)
        for given_out in allocation.containers.values():
            columns = [share.index for share in given_out.cards]
            assert joined(cache.ledger.links.get(0), columns, links if len(columns) > 1 else "")
    assert cache.ledger.overcommits() == []
