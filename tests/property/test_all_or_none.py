"""Gangs of any make on clusters of any make: all of a gang is placed or none, no card is over-committed, the question
changes nothing, and members that ask alike are refused only where arithmetic says that they do not fit."""

from hypothesis import given, settings
from hypothesis import strategies as st

from egpu.api import names
from egpu.core.gangs.placing import GangVerdict, place_gang
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu.core.placement.ledger import Holder
from egpu.core.policies.registry import Policies
from egpu_base.api.kubernetes import Pod
from support.long import or_long
from support.objects import BINPACK, SPREAD, card, container, pod, slice_pod

shares = st.sampled_from([10, 25, 30, 50, 60, 100])
policies = st.sampled_from([BINPACK, SPREAD, Policies.named("price", "price")])
sizes = st.lists(st.integers(1, 3), min_size=1, max_size=4)


def cluster(cards: list[int], busy: list[tuple[int, int]]) -> SchedulerCache:
    """Nodes of so many cards, and single pods on them: (node, percent), as far as they fit."""
    cache = rebuild([card(f"n{node}", index) for node, count in enumerate(cards) for index in range(count)], [], [])
    for number, (node, core) in enumerate(busy):
        one = slice_pod(f"busy{number}", core=core, blocks=1)
        name = f"n{node % len(cards)}"
        if cache.filter(cache.request(one), [name]).fits:
            cache.assume_pod(one, cache.ranking.choose(cache.request(one), name, BINPACK))
    return cache


def member(number: int, size: int, *cores: int) -> Pod:
    parts = [container(f"c{at}", {names.GPU_CORE: core}) for at, core in enumerate(cores)]
    return pod(f"m{number}", *parts, annotations={names.GANG: "g", names.GANG_SIZE: str(size)})


def ask(cache: SchedulerCache, members: list[Pod], offers: list[list[str]], how: Policies) -> GangVerdict:
    for one, nodes in zip(members, offers, strict=True):
        cache.pod_changed(one)
        cache.gangs.offer(one, nodes)
    gang = cache.gangs.of(members[0])
    assert gang is not None
    return place_gang(cache, gang, how, pod=members[0], nodes=offers[0])


def assert_all_or_none(cache: SchedulerCache, members: list[Pod], offers: list[list[str]], found: GangVerdict) -> None:
    assert set(found.allocations) in (set(), {one.uid for one in members})
    assert bool(found.allocations) != bool(found.reason)
    for one, nodes in zip(members, offers, strict=True):
        if found.allocations:
            assert found.allocations[one.uid].node in nodes
            cache.assume_pod(one, found.allocations[one.uid])
    assert cache.ledger.overcommits() == []


@settings(max_examples=or_long(50, 150), deadline=None)
@given(sizes, st.lists(st.tuples(st.integers(0, 3), shares), max_size=6), policies, st.data())
def test_unlike_members_all_or_none_and_never_over_committed(
    cards: list[int], busy: list[tuple[int, int]], how: Policies, data: st.DataObject
) -> None:
    cache = cluster(cards, busy)
    nodes = [f"n{node}" for node in range(len(cards))]
    asks = data.draw(st.lists(st.lists(shares, min_size=1, max_size=2), min_size=1, max_size=5))
    members = [member(number, len(asks), *cores) for number, cores in enumerate(asks)]
    offers = [data.draw(st.lists(st.sampled_from(nodes), unique=True)) for _ in members]
    books = cache.ledger.snapshot()
    found = ask(cache, members, offers, how)
    assert cache.ledger.snapshot() == books
    assert not any(cache.ledger.holding(Holder("pod", one.uid)) for one in members)
    assert_all_or_none(cache, members, offers, found)


@settings(max_examples=or_long(50, 150), deadline=None)
@given(sizes, st.lists(st.tuples(st.integers(0, 3), shares), max_size=6), shares, st.integers(1, 8), policies)
def test_like_members_are_placed_exactly_when_they_fit(
    cards: list[int], busy: list[tuple[int, int]], core: int, count: int, how: Policies
) -> None:
    cache = cluster(cards, busy)
    nodes = [f"n{node}" for node in range(len(cards))]
    members = [member(number, count, core) for number in range(count)]
    memory = max(16384 * core // 100, 1)
    room = 0
    for free_core, free_memory, mode, _ in cache.ledger.snapshot().values():
        if core == 100:
            room += mode == ""
        elif mode in ("", names.VCUDA):
            room += min(free_core // core, free_memory // memory)
    found = ask(cache, members, [nodes] * count, how)
    assert bool(found.allocations) == (room >= count)
    assert_all_or_none(cache, members, [nodes] * count, found)


@settings(max_examples=60, deadline=None)
@given(sizes, st.integers(2, 5), st.integers(0, 5), shares)
def test_the_rest_of_a_gang_is_placed_beside_its_bound_members(
    cards: list[int], count: int, bound: int, core: int
) -> None:
    """As after a crash between the bindings: whoever is bound stays, the others come all or none."""
    cache = cluster(cards, [])
    nodes = [f"n{node}" for node in range(len(cards))]
    members = [member(number, count, core) for number in range(count)]
    whole = ask(cache, members, [nodes] * count, BINPACK)
    rest = members[min(bound, count) :]
    if not whole.allocations or not rest:
        return
    for one in members[: len(members) - len(rest)]:
        cache.assume_pod(one, whole.allocations[one.uid])
    gang = cache.gangs.of(rest[0])
    assert gang is not None
    assert gang.partial == (0 < bound < count)
    found = place_gang(cache, gang, SPREAD, pod=rest[0], nodes=nodes)
    assert set(found.allocations) == {one.uid for one in rest}
