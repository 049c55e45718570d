"""Instances of MIG on a card: nothing overlaps, and nothing that fits in some order is refused."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu.api.mig import InstancePlace, Mig
from egpu.core.mig import WantedInstance, arrange, core_percent, in_the_way, overlapping, smallest, taken
from egpu_sim.machines.machine import profiles as simulated
from support.mig import mig_profiles

CARDS = {name: Mig(profiles=mig_profiles(name)) for name, model in simulated().items() if model.mig}
GEOMETRIES = {
    tuple((each.size, each.starts, each.most) for each in card.profiles): name for name, card in CARDS.items()
}
"""A model for each way in which cards can be cut: those of the others are the same under other names."""
Bag = tuple[tuple[str, int], ...]


def bag(names: Iterator[str] | list[str]) -> Bag:
    return tuple(sorted(Counter(names).items()))


def every_set(card: Mig) -> set[Bag]:
    """All that a card can hold at once, found by putting every place of every profile on it or not."""
    places = [
        InstancePlace(profile=each.name, start=start, size=each.size) for each in card.profiles for start in each.starts
    ]
    most = {each.name: each.most for each in card.profiles}
    found: set[Bag] = set()
    open_sets: list[tuple[int, int, tuple[str, ...]]] = [(0, 0, ())]
    while open_sets:
        at, bits, names = open_sets.pop()
        found.add(bag(list(names)))
        for later in range(at, len(places)):
            place = places[later]
            if not place.mask & bits and names.count(place.profile) < most[place.profile]:
                open_sets.append((later + 1, bits | place.mask, (*names, place.profile)))
    return found


def maximal(card: Mig) -> list[list[str]]:
    """The sets to which nothing can be added, as lists."""
    fitting = every_set(card)
    listed = [list(chain.from_iterable([name] * count for name, count in one)) for one in fitting]
    return [one for one in listed if not any(bag([*one, each.name]) in fitting for each in card.profiles)]


def orders(counts: Counter[str]) -> Iterator[tuple[str, ...]]:
    """Every different order of them."""
    if not +counts:
        yield ()
    for name in +counts:
        for rest in orders(counts - Counter([name])):
            yield (name, *rest)


@pytest.mark.parametrize("model", GEOMETRIES.values())
def test_no_order_of_a_set_that_fits_is_refused(model: str) -> None:
    card = CARDS[model]
    for one in maximal(card):
        for order in orders(Counter(one)):
            placed = arrange(card, (), [WantedInstance(name) for name in order])
            assert placed is not None, order
            assert [place.profile for place in placed] == list(order)
            assert not overlapping(placed)


@pytest.mark.parametrize("model", GEOMETRIES.values())
def test_however_a_card_is_cut_what_nobody_has_gives_way_to_every_set_that_fits(model: str) -> None:
    card = CARDS[model]
    sets = maximal(card)
    for there in sets:
        own = arrange(card, (), [WantedInstance(name) for name in there])
        assert own is not None
        cut = Mig(profiles=card.profiles, own=list(own))
        for wanted in sets:
            placed = arrange(cut, (), [WantedInstance(name) for name in wanted])
            assert placed is not None, (there, wanted)
            assert not overlapping(placed)


def test_all_models_that_nvidia_publishes_are_tried() -> None:
    assert set(CARDS) == {"A30", "A100-40G", "A100-80G", "H100-80G", "H100-94G", "GH200", "H200", "B200"}


@pytest.mark.parametrize("model", GEOMETRIES.values())
def test_a_set_is_placed_if_and_only_if_it_fits_in_some_order(model: str) -> None:
    card = CARDS[model]
    fitting = every_set(card)
    names = [each.name for each in card.profiles]
    for one in fitting:
        listed = list(chain.from_iterable([name] * count for name, count in one))
        for order in (listed[::-1], listed[1::2] + listed[::2]):
            placed = arrange(card, (), [WantedInstance(name) for name in order])
            assert placed is not None, order
            assert [place.profile for place in placed] == order
            assert not overlapping(placed)
        for another in names:
            more = [*listed, another]
            assert (arrange(card, (), [WantedInstance(name) for name in more]) is not None) == (bag(more) in fitting)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Mig, list[tuple[str, int]]]:
    card = CARDS[draw(st.sampled_from(sorted(CARDS)))]
    names = [each.name for each in card.profiles]
    steps = st.tuples(st.sampled_from([*names, ""]), st.integers(0, 7))
    return card, draw(st.lists(steps, max_size=25))


@given(histories())
def test_what_comes_and_goes_never_overlaps_and_is_refused_only_where_no_place_is_free(
    history: tuple[Mig, list[tuple[str, int]]],
) -> None:
    card, steps = history
    held: list[InstancePlace] = []
    for name, which in steps:
        if not name:
            if held:
                held.pop(which % len(held))
            continue
        profile = card.profile(name)
        assert profile is not None
        found = arrange(card, held, [WantedInstance(name)])
        free = [start for start in profile.starts if not taken(held) >> start & ((1 << profile.size) - 1)]
        assert (found is not None) == (bool(free) and sum(place.profile == name for place in held) < profile.most)
        held += found or ()
        assert not overlapping(held)
        share = {each.name: core_percent(card.profiles, each) for each in card.profiles}
        assert sum(share[place.profile] for place in held) <= 100


A100 = CARDS["A100-40G"]


def place(profile: str, start: int) -> InstancePlace:
    found = A100.profile(profile)
    assert found is not None
    return InstancePlace(profile=profile, start=start, size=found.size)


def with_instances(*, own: list[InstancePlace] | None = None, others: list[InstancePlace] | None = None) -> Mig:
    return Mig(profiles=A100.profiles, own=own or [], others=others or [])


def test_what_may_be_larger_is_larger_only_where_it_has_to_be() -> None:
    card = with_instances(others=[place("1g.5gb+me", 0), place("2g.10gb", 2), place("3g.20gb", 4)])
    amounts = [WantedInstance("1g.5gb", cut=False, larger=("1g.5gb+me", "2g.10gb", "3g.20gb"))] * 3
    assert arrange(card, (), amounts) == (place("1g.5gb+me", 0), place("2g.10gb", 2), place("3g.20gb", 4))
    assert arrange(card, (), [*amounts, amounts[0]]) is None
    named = WantedInstance("2g.10gb", cut=False)
    assert arrange(card, (), [*amounts[:2], named]) == (
        place("1g.5gb+me", 0),
        place("3g.20gb", 4),
        place("2g.10gb", 2),
    ), "who can take another leaves the one that somebody needs"


def one(card: Mig, held: list[InstancePlace], profile: str, *, cut: bool = True) -> InstancePlace | None:
    found = arrange(card, held, [WantedInstance(profile, cut)])
    return found[0] if found else None


def test_an_instance_that_is_there_is_taken_before_one_is_made() -> None:
    card = with_instances(own=[place("1g.5gb", 2), place("2g.10gb", 0)])
    assert one(card, [], "1g.5gb") == place("1g.5gb", 2)
    assert one(card, [place("1g.5gb", 2)], "1g.5gb") not in (None, place("1g.5gb", 2))
    assert one(with_instances(others=[place("3g.20gb", 0)]), [], "3g.20gb") == place("3g.20gb", 0)


def test_where_nothing_may_be_cut_only_what_is_there_is_given_out() -> None:
    card = with_instances(others=[place("1g.5gb", 0)])
    assert one(card, [], "1g.5gb", cut=False) == place("1g.5gb", 0)
    assert one(card, [place("1g.5gb", 0)], "1g.5gb", cut=False) is None
    assert one(card, [], "2g.10gb", cut=False) is None


def test_own_free_instances_give_way_and_others_stay() -> None:
    own = with_instances(own=[place("1g.5gb", 0), place("1g.5gb", 4)])
    assert one(own, [], "7g.40gb") == place("7g.40gb", 0)
    assert in_the_way(own, place("7g.40gb", 0)) == (place("1g.5gb", 0), place("1g.5gb", 4))
    assert in_the_way(own, place("1g.5gb", 4)) == ()
    assert one(own, [place("1g.5gb", 0)], "7g.40gb") is None
    assert one(with_instances(others=[place("1g.5gb", 0)]), [], "7g.40gb") is None
    assert one(with_instances(others=[place("1g.5gb", 0)]), [], "4g.20gb") is None
    assert one(with_instances(others=[place("1g.5gb+me", 0)]), [place("1g.5gb+me", 0)], "1g.5gb+me") is None


def test_a_small_one_goes_where_a_large_one_still_fits() -> None:
    first = one(A100, [], "1g.5gb")
    assert first is not None
    assert one(A100, [first], "4g.20gb") == place("4g.20gb", 0)


def test_an_amount_gets_the_smallest_profile_that_has_it() -> None:
    def smallest_name(core: int, memory_mib: int) -> str | None:
        found = smallest(A100.profiles, core, memory_mib)
        return None if found is None else found.name

    assert smallest_name(14, 4096) == "1g.5gb"
    assert smallest_name(14, 5120) == "1g.10gb"
    assert smallest_name(15, 5120) == "2g.10gb"
    assert smallest_name(43, 0) == "4g.20gb"
    assert smallest_name(100, 40_448) == "7g.40gb"
    assert smallest_name(0, 40_449) is None
