"""Where the members of a gang are tried, in which order, how often, and what is counted meanwhile."""

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerDemand, PodDemand
from egpu.core.gangs import placing
from egpu.core.gangs.placing import GangVerdict, Member, Stuck, place_gang, place_members
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.refusal import Refusal
from egpu.core.placement.requests import Request
from egpu.core.policies.registry import Policies
from egpu_base.api.kubernetes import Node, NodeStatus
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import MissingExtra
from support.objects import BINPACK, SPREAD, claim_pod, cluster, gang_pod, place, pod, slice_pod

WHOLE = ContainerDemand(provisioner=names.VCUDA, cards=1, core=100, exclusive=True)


def sliced(core: int, *, memory_mib: int = 256, cards: int = 1) -> ContainerDemand:
    return ContainerDemand(provisioner=names.VCUDA, cards=cards, core=core, memory_mib=memory_mib)


def member(name: str, nodes: str, *demands: ContainerDemand, cpu_milli: int = 0, ram_mib: int = 0) -> Member:
    """`nodes`: of which it may be on, as "n0 n1"."""
    asks = PodDemand(containers={f"c{number}": demand for number, demand in enumerate(demands)})
    return Member(pod(name), Request(asks, cpu_milli=cpu_milli, ram_mib=ram_mib), tuple(nodes.split()))


def found(cache: SchedulerCache, *members: Member, policies: Policies = BINPACK) -> dict[str, str] | Stuck:
    """Nodes by pod, in the order of placing; nothing is kept."""
    before, holders = cache.ledger.snapshot(), dict(cache.ledger.holders())
    answer = place_members(cache, members, policies)
    assert cache.ledger.snapshot() == before
    assert cache.ledger.holders() == holders
    if isinstance(answer, Stuck):
        return answer
    return {uid.removeprefix("uid-"): allocation.node for uid, allocation in answer.items()}


def stuck(answer: dict[str, str] | Stuck) -> tuple[str, int]:
    assert isinstance(answer, Stuck)
    return answer.pod.name, answer.placed


def node(name: str, **allocatable: str) -> Node:
    return Node(
        metadata=ObjectMeta(name=name), status=NodeStatus(allocatable=dict[str, int | float | str](allocatable))
    )


def test_the_hardest_come_first_those_with_one_node_then_by_cards_then_by_compute_then_by_name() -> None:
    cache = cluster(nodes=4, cards=4)
    members = [
        member("a", "n0 n1", sliced(10)),
        member("b", "n0 n1", sliced(60)),
        member("c", "n0 n1", WHOLE),
        member("d", "n0 n1", sliced(20, cards=2)),
        member("e", "n0 n1", sliced(60)),
        member("f", "n2", sliced(5)),
        member("g", "n0 n1", sliced(15), sliced(16)),
        member("h", "n3", sliced(6)),
    ]
    answer = found(cache, *members)
    assert isinstance(answer, dict)
    assert list(answer) == ["h", "f", "d", "g", "c", "b", "e", "a"]


def test_a_whole_card_is_a_hundred_percent_whatever_else_it_says() -> None:
    cache = cluster(cards=4)
    whole = replace(WHOLE, core=0)
    answer = found(cache, member("a", "n0 n1", sliced(99)), member("b", "n0 n1", whole))
    assert isinstance(answer, dict)
    assert list(answer) == ["b", "a"]
    pair = found(
        cache, member("b", "n0 n1", whole, sliced(98, memory_mib=1)), member("a", "n0 n1", sliced(99), sliced(99))
    )
    assert isinstance(pair, dict)
    assert list(pair) == ["a", "b"], "198 % both"


def test_each_goes_where_the_policy_would_have_it() -> None:
    cache = cluster(nodes=2)
    place(cache, slice_pod("busy"), "n1")
    one = member("a", "n0 n1", sliced(10))
    assert found(cache, one, policies=BINPACK) == {"a": "n1"}
    assert found(cache, one, policies=SPREAD) == {"a": "n0"}


def test_others_are_tried_elsewhere_within_the_bound_and_not_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three placements are needed: the first one's better place is the only one of the second."""
    cache = cluster(nodes=2)
    members = member("a", "n0 n1", WHOLE), member("b", "n0 n9", sliced(60))
    monkeypatch.setattr(placing, "SPARE_STEPS", 1)
    assert found(cache, *members) == {"a": "n1", "b": "n0"}
    monkeypatch.setattr(placing, "SPARE_STEPS", 0)
    assert stuck(found(cache, *members)) == ("b", 1)


def test_of_dead_ends_that_are_as_far_the_one_is_told_that_the_policys_first_choice_led_to() -> None:
    cache = cluster(nodes=2)
    for name in ("n0", "n1"):
        place(cache, slice_pod(f"busy-{name}"), name)
    members = (
        member("a", "n0 n1", sliced(50, memory_mib=1024)),
        member("b", "n0 n1", sliced(30, memory_mib=14_000)),
    )
    answer = found(cache, *members)
    assert stuck(answer) == ("b", 1)
    assert isinstance(answer, Stuck)
    beside, alone = (refusal.text() for refusal in answer.refusals)
    assert "has 12800 MiB" in beside
    assert "has 13824 MiB" in alone


def test_the_dead_end_that_is_told_is_the_farthest() -> None:
    """With the first on n0 the second has no room; with it on n1 only the third has none."""
    cache = cluster(nodes=2)
    members = (
        member("a", "n0 n1", sliced(70)),
        member("b", "n0 n9", sliced(60)),
        member("c", "n0 n1 n9", sliced(50, memory_mib=20_000)),
    )
    assert stuck(found(cache, *members)) == ("c", 2)


def test_a_search_goes_on_while_any_that_is_left_asks_for_something_else() -> None:
    """The first and the last ask alike; the one between them fits only where the first was."""
    cache = cluster(nodes=3)
    first, last = (member(name, "n0 n1 n2", sliced(60)) for name in ("a", "c"))
    between = member("b", "n0 n9", sliced(60, memory_mib=512))
    assert found(cache, first, between, last) == {"a": "n1", "b": "n0", "c": "n2"}


def test_what_is_tried_elsewhere_gives_back_its_place() -> None:
    moved = (
        member("a", "n0 n1 n2", sliced(70)),
        member("b", "n0 n1 n9", sliced(60)),
        member("c", "n0 n8", sliced(55)),
    )
    assert found(cluster(nodes=3), *moved) == {"a": "n2", "b": "n1", "c": "n0"}


@pytest.mark.parametrize("unit", ["cpu", "memory"])
def test_cpu_and_memory_are_counted_to_the_last_unit(unit: str) -> None:
    def cache_of(amount: int) -> SchedulerCache:
        cache = cluster(cards=4)
        text = f"{amount}m" if unit == "cpu" else f"{amount}Mi"
        cache.node_changed(node("n0", **{unit: text}))
        return cache

    def asking(name: str, amount: int) -> Member:
        return member(name, "n0", sliced(10), **{"cpu_milli" if unit == "cpu" else "ram_mib": amount})

    one, two, three = (asking(name, 2000) for name in "abc")
    assert found(cache_of(2000), one) == {"a": "n0"}
    assert stuck(found(cache_of(1999), one)) == ("a", 0)
    assert found(cache_of(4000), one, two) == {"a": "n0", "b": "n0"}
    assert stuck(found(cache_of(3999), one, two)) == ("b", 1)
    assert found(cache_of(6000), one, two, three) == {"a": "n0", "b": "n0", "c": "n0"}
    assert stuck(found(cache_of(5999), one, two, three)) == ("c", 2)


@pytest.mark.parametrize("unit", ["cpu", "memory"])
def test_what_was_taken_back_is_counted_no_more_and_not_twice(unit: str) -> None:
    def cache_of(amount: int) -> SchedulerCache:
        cache = cluster(nodes=2, cards=4)
        cache.node_changed(node("n0", **{unit: f"{amount}m" if unit == "cpu" else f"{amount}Mi"}))
        return cache

    def asking(name: str, nodes: str, core: int) -> Member:
        return member(name, nodes, sliced(core), **{"cpu_milli" if unit == "cpu" else "ram_mib": 3000})

    moves, stays, more = asking("a", "n0 n1", 60), asking("b", "n0 n9", 50), asking("c", "n0 n9", 40)
    assert found(cache_of(3000), moves, stays) == {"a": "n1", "b": "n0"}
    assert stuck(found(cache_of(5999), moves, stays, more)) == ("c", 2)


def test_who_asks_for_no_cpu_or_memory_is_not_kept_from_a_node_that_has_none_left() -> None:
    cache = cluster(cards=4)
    cache.node_changed(node("n0", cpu="0", memory="4Gi"))
    assert found(cache, member("a", "n0", sliced(10), ram_mib=4096)) == {"a": "n0"}
    assert stuck(found(cache, member("a", "n0", sliced(10), cpu_milli=1))) == ("a", 0)
    cache.node_changed(node("n0", cpu="4", memory="0"))
    assert found(cache, member("a", "n0", sliced(10), cpu_milli=4000)) == {"a": "n0"}
    assert stuck(found(cache, member("a", "n0", sliced(10), ram_mib=1))) == ("a", 0)


def test_so_many_nodes_say_why_they_refuse() -> None:
    nodes = [f"n{number}" for number in range(10)]
    cache = cluster(nodes=10)
    cache.node_changed(node("n1", cpu="1"))
    big = member("a", " ".join(nodes), sliced(50, memory_mib=20_000), cpu_milli=2000)
    for reasons in (0, 1, 3, 10):
        answer = place_members(cache, [big], BINPACK, reasons=reasons)
        assert isinstance(answer, Stuck)
        assert [one.node for one in answer.refusals] == nodes[:reasons]
    assert answer.refusals[1] == Refusal("n1", "the node has too little CPU or memory left")
    default = found(cache, big)
    assert isinstance(default, Stuck)
    assert [one.node for one in default.refusals] == nodes[:8]


def test_a_gang_says_who_is_stuck_and_of_so_many_nodes_why() -> None:
    nodes = ("n0", "n1", "n2")
    cache = cluster(nodes=3)
    for name in nodes:
        place(cache, slice_pod(f"busy-{name}"), name)
    waits = gang_pod("a", size=1)
    cache.pod_changed(waits)
    gang = cache.gangs.of(waits)
    assert gang is not None
    answer = place_gang(cache, gang, BINPACK, pod=waits, nodes=nodes, reasons=2)
    assert answer.stuck == waits
    assert answer.reason == "gang g: all 1 members exist, 0 fit at once; a has no room even alone"
    assert [one.node for one in answer.refusals] == ["n0", "n1"]
    first, second = (one.text() for one in answer.refusals)
    assert answer.text() == f"{answer.reason}: node n0: {first}; node n1: {second}"
    assert GangVerdict({}, "why").text() == "why"


def test_a_member_whose_demand_cannot_be_read_keeps_its_gang_waiting() -> None:
    cache = cluster()
    unreadable = claim_pod("a", "c")
    annotations = {names.GANG: "g", names.GANG_SIZE: "1", names.CLAIM_PREFIXES[0] + "app": ""}
    unreadable = replace(unreadable, metadata=replace(unreadable.metadata, annotations=annotations))
    cache.gangs.pod_changed(unreadable)
    gang = cache.gangs.of(unreadable)
    assert gang is not None
    answer = place_gang(cache, gang, BINPACK, pod=unreadable, nodes=("n0",))
    assert answer.allocations == {}
    assert answer.reason.startswith("gang g: pod a: ")


def test_a_policy_that_cannot_be_asked_keeps_its_gang_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cluster()
    waits = gang_pod("a", size=1)
    cache.pod_changed(waits)
    gang = cache.gangs.of(waits)
    assert gang is not None
    missing = MissingExtra("the policy price", package="highspy", extra="prices")

    def scores(*_: object, **__: object) -> dict[str, float]:
        raise missing

    monkeypatch.setattr(cache.ranking, "scores", scores)
    assert place_gang(cache, gang, BINPACK, pod=waits, nodes=("n0",)) == GangVerdict({}, f"gang g: {missing}")
