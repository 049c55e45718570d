"""Pods with many containers: what is computed and written about them has a bound."""

from datetime import UTC, datetime
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import Role, encode
from egpu.core.admission import validate_pod_create
from egpu.core.demand.pods import read_pod
from egpu.core.explain import explain_pod
from egpu.core.placement import search
from egpu.core.placement.card_usage import FREE
from egpu.core.placement.node_names import NodeNames
from egpu.core.placement.search import Cards, ContainerNeeds, Searches
from egpu.core.view.pending import MOST_CONTAINERS, PendingPods
from egpu_base.api.kubernetes import Pod
from support.objects import BINPACK, cluster, container, place, pod, slice_pod

SHARED = 7
"""The mode of cards that some technology shares."""
NOW = datetime(2026, 11, 1, tzinfo=UTC)


def large(name: str = "large", *, containers: int, core: int = 50, each: int = 0) -> Pod:
    """`each`: MiB by which the containers differ."""
    asked = [container(f"c{at}", {names.GPU_CORE: core, names.GPU_MEMORY: 100 + at * each}) for at in range(containers)]
    made = pod(name, *asked)
    demand, _ = read_pod(made, {}, {})
    return replace(made, metadata=replace(made.metadata, annotations={names.DEMAND: encode(demand)}))


def needs(*amounts: int, columns: int = 4) -> list[ContainerNeeds]:
    return [
        ContainerNeeds(f"c{at}", 1, [amount] * columns, [1] * columns, [True] * columns, SHARED, Role(f"c{at}"))
        for at, amount in enumerate(amounts)
    ]


def cards(free: int, columns: int = 4) -> Cards:
    return Cards([free] * columns, [1000] * columns, [FREE] * columns)


def test_equal_containers_are_placed_in_one_order_only() -> None:
    searches = Searches()
    assert searches.place(needs(*[40] * 9), cards(100)) is None, "two of 40 on each card of 100"
    assert searches.steps < 100, "other orders of the same are not tried"
    found = searches.place(needs(*[40] * 8), cards(100))
    assert found is not None
    assert sorted(columns for (columns,) in found.values()) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_more_than_all_cards_have_is_not_searched_for() -> None:
    searches = Searches()
    assert searches.place(needs(*range(30, 60)), cards(100)) is None
    assert searches.steps == 0


def test_equal_nodes_are_searched_once_and_all_together_have_a_bound() -> None:
    searches = Searches(most_steps=3000)
    hard = needs(*(17 + 3 * at for at in range(10)), columns=6)
    for free in (73, 73, 73):
        searches.place(hard, cards(free, columns=6))
    once = searches.steps
    fresh = Searches(most_steps=3000)
    fresh.place(hard, cards(73, columns=6))
    assert once == fresh.steps > 0
    for free in range(74, 90):
        searches.place(hard, cards(free, columns=6))
    assert searches.steps <= 3000 + 16 + 10 * 6 * 16


def test_a_pod_beyond_what_is_searched_for_gets_the_greedy_place_alone() -> None:
    assert Searches().place(needs(*[1] * (search.MAX_CONTAINERS + 1)), cards(1000)) is None


@pytest.mark.parametrize("count", [names.MAX_GPU_CONTAINERS, names.MAX_GPU_CONTAINERS + 1])
def test_a_pod_has_so_many_containers_with_gpus(count: int) -> None:
    found = validate_pod_create(large(containers=count), {}, {})
    said = [f"spec.containers: {count} containers ask for a GPU; a pod may have 128: use more pods"]
    assert list(map(str, found)) == (said if count > names.MAX_GPU_CONTAINERS else [])


@pytest.mark.parametrize("each", [0, 1])
def test_an_explanation_is_as_long_for_many_containers_as_for_some(each: int) -> None:
    cache = cluster(nodes=3)
    found = explain_pod(large(containers=1000, each=each), cache, ["n0", "n1", "n2"], BINPACK)
    assert found.state == "waiting"
    assert max(map(len, found.lines())) < 1000
    assert len(found.lines()) < 20
    assert "1000 containers ask for GPUs: c0" in found.lines()[1]


def test_equal_containers_are_described_together() -> None:
    found = explain_pod(large(containers=20, core=10), cluster(nodes=1), ["n0"], BINPACK)
    assert found.details == ("20 containers ask for GPUs: c0, c1, c2 and 17 more each 10 % and 100 MiB of a card",)


def test_a_list_compares_a_bounded_number_of_containers_and_reaches_all_pods() -> None:
    cache = cluster(nodes=2)
    pending, nodes = PendingPods(cache), NodeNames(["n0", "n1"])
    pods = [large(f"p{at}", containers=100, core=50 + at) for at in range(40)]
    for one in pods:
        pending.pod_changed(one)
    with patch.object(cache, "filter", wraps=cache.filter) as filtered:
        first = pending.listed(nodes, now=NOW)
        assert filtered.call_count == -(-MOST_CONTAINERS // 100)
        assert sum("not compared with the nodes yet" in one.message for one in first) == 40 - filtered.call_count
        for _ in range(39):
            pending.listed(nodes, now=NOW)
        last = pending.listed(nodes, now=NOW)
        assert filtered.call_count == 40, "an answer stays while nothing changes"
    assert all("none of 2 nodes has room for it" in one.message for one in last)
    assert all(len(one.message) < 300 for one in last)


def test_an_answer_follows_the_cards() -> None:
    cache = cluster(nodes=1)
    pending, nodes = PendingPods(cache), NodeNames(["n0"])
    waiting = slice_pod("p", core=30)
    demand, _ = read_pod(waiting, {}, {})
    pending.pod_changed(
        replace(waiting, metadata=replace(waiting.metadata, annotations={names.DEMAND: encode(demand)}))
    )
    assert "1 of 1 nodes have room" in pending.listed(nodes, now=NOW)[0].message
    place(cache, slice_pod("full", core=90))
    assert "none of 1 nodes has room" in pending.listed(nodes, now=NOW)[0].message
