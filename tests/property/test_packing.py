"""What holds for every policy, whatever is asked: cards of two dimensions, CPU and memory, pods that come and go."""

from dataclasses import dataclass
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from egpu.core.policies.fleet import Fleet, Placement
from egpu.core.policies.learning import LearnedMix
from egpu.core.policies.placer import Placer
from egpu.core.policies.prices import compute_prices
from egpu.core.policies.registry import NAMES, Setting, make_policy
from egpu.core.policies.shapes import WHOLE_CARD, Machine, Mix, Shape
from support.fleets import place_fits
from support.long import or_long

MODELS = ("A", "B")
machines = st.lists(
    st.builds(
        Machine,
        name=st.just(""),
        cpu_milli=st.integers(0, 20).map(lambda cores: cores * 1000),
        ram_mib=st.integers(0, 20).map(lambda gib: gib * 1024),
        cards=st.integers(0, 4),
        model=st.sampled_from(MODELS),
        card_memory_mib=st.sampled_from((0, 16_000, 24_000)),
    ),
    min_size=1,
    max_size=6,
).map(lambda found: [Machine(f"n{at}", *_rest(machine)) for at, machine in enumerate(found)])


def _rest(machine: Machine) -> tuple[int, int, int, str, int]:
    return machine.cpu_milli, machine.ram_mib, machine.cards, machine.model, machine.card_memory_mib


@st.composite
def shape(draw: st.DrawFn) -> Shape:
    cards = draw(st.sampled_from((0, 1, 1, 1, 2, 4)))
    core = draw(st.sampled_from((0, 110, 333, 500, 810))) if cards == 1 else WHOLE_CARD
    memory = draw(st.sampled_from((0, 3000, 8000, 20_000))) if cards == 1 else 0
    if cards and not (core or memory):
        core = WHOLE_CARD
    return Shape(
        cpu_milli=draw(st.integers(0, 6)) * 1000,
        ram_mib=draw(st.integers(0, 6)) * 1024,
        cards=cards,
        core_milli=core if cards else 0,
        card_memory_mib=memory,
        models=draw(st.sampled_from(((), (), ("A",), ("A", "B")))) if cards else (),
    )


@dataclass(frozen=True)
class Event:
    """A pod that comes, or the end of the one that came at `ends`."""

    shape: Shape
    ends: int | None


events = st.lists(st.builds(Event, shape=shape(), ends=st.none() | st.integers(0, 30)), max_size=40)


def fits_somewhere(fleet: Fleet, wanted: Shape) -> bool:
    """Looked up naively, card by card."""
    for row, machine in enumerate(fleet.machines):
        if wanted.cards and wanted.models and machine.model not in wanted.models:
            continue
        if fleet.cpu[row] < wanted.cpu_milli or fleet.ram[row] < wanted.ram_mib:
            continue
        able = [
            column
            for column in range(machine.cards)
            if fleet.core[row, column] >= wanted.core_milli
            and fleet.card_memory[row, column] >= (machine.card_memory_mib if wanted.whole else wanted.card_memory_mib)
        ]
        if len(able) >= wanted.cards:
            return True
    return False


@settings(max_examples=or_long(10, 60), deadline=None)
@given(machines, events, st.sampled_from(NAMES))
def test_never_over_commits_and_never_refuses_what_fits(found: list[Machine], comes: list[Event], policy: str) -> None:
    fleet = Fleet(found)
    placer = Placer(fleet, make_policy(policy, Setting(fleet, Mix.of([event.shape for event in comes]))))
    placed: dict[int, tuple[Shape, Placement]] = {}
    for at, event in enumerate(comes):
        if event.ends is not None and event.ends in placed:
            fleet.release(*placed.pop(event.ends))
        place = placer.find(event.shape)
        assert (place is not None) == fits_somewhere(fleet, event.shape)
        if place is not None:
            assert place_fits(fleet, event.shape, place)
            fleet.take(event.shape, place)
            placed[at] = (event.shape, place)
        assert min(fleet.core.min(), fleet.card_memory.min(), fleet.host.min()) >= 0
    for wanted, place in placed.values():
        fleet.release(wanted, place)
    fresh = Fleet(found)
    for name in ("core", "card_memory", "host", "gpu", "full", "largest"):
        assert np.array_equal(getattr(fleet, name), getattr(fresh, name)), name
    assert fleet.allocated_milli == 0


@settings(max_examples=or_long(8, 40), deadline=None)
@given(machines, events, st.sampled_from([name for name in NAMES if name != "random"]), st.randoms())
def test_node_order_decides_nothing_but_ties(
    found: list[Machine], comes: list[Event], policy: str, random: Random
) -> None:
    """The best score is the same however the nodes are listed, and each node's own score too."""
    mix = Mix.of([event.shape for event in comes])
    order = list(range(len(found)))
    random.shuffle(order)
    one, other = Fleet(found), Fleet([found[at] for at in order])
    mine = Placer(one, make_policy(policy, Setting(one, mix)))
    theirs = Placer(other, make_policy(policy, Setting(other, mix)))
    for event in comes:
        place = mine.find(event.shape)
        scores, shuffled = mine.scores(event.shape).copy(), theirs.scores(event.shape)
        assert np.allclose(scores[order], shuffled, equal_nan=True)
        if place is not None:
            assert scores[place.row] == scores.max()
            assert place.row == int(scores.argmax())  # the declared tie: the lowest row
            one.take(event.shape, place)
            other.take(event.shape, Placement(order.index(place.row), place.cards))


@settings(max_examples=40, deadline=None)
@given(machines, events, st.sampled_from([name for name in NAMES if name != "random"]))
def test_refreshed_scores_are_those_scored_anew(found: list[Machine], comes: list[Event], policy: str) -> None:
    """Rows are refreshed where nodes changed, and pristine nodes stand for each other: a placer that has seen nothing
    says the same. Twice as many nodes, so that there are alike ones; prices follow the mix on the way."""
    fleet = Fleet([*found, *found])
    chosen = make_policy(policy, Setting(fleet, Mix.of([event.shape for event in comes])))
    placer, learned = Placer(fleet, chosen), LearnedMix()
    placed: dict[int, tuple[Shape, Placement]] = {}
    for at, event in enumerate(comes):
        if event.ends is not None and event.ends in placed:
            fleet.release(*placed.pop(event.ends))
        if chosen.priced and event.shape.cards and learned.see(event.shape):
            chosen.use_prices(fleet, compute_prices(learned.mix(), fleet))
        place = placer.place(event.shape)
        if place is not None:
            placed[at] = (event.shape, place)
        assert np.array_equal(placer.scores(event.shape), Placer(fleet, chosen).scores(event.shape))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=400))
def test_a_reader_is_told_of_every_changed_row(steps: list[tuple[int, int]]) -> None:
    """Ten readers that look now and then, one of them after each change."""
    fleet = Fleet([Machine(f"n{at}", 1 << 20, 1 << 20, 0) for at in range(10)])
    known = [0] * 10
    changed: list[set[int]] = [set() for _ in range(10)]
    for row, reader in steps:
        fleet.take(Shape(cpu_milli=1), Placement(row, ()))
        for rows in changed:
            rows.add(row)
        assert set(fleet.changed_since(known[reader]).tolist()) == changed[reader]
        known[reader], changed[reader] = fleet.version, set()


@settings(max_examples=30, deadline=None)
@given(st.lists(shape(), min_size=1, max_size=60))
def test_a_kept_mix_goes_on_where_it_stopped(pods: list[Shape]) -> None:
    learned = LearnedMix()
    for pod in pods:
        learned.see(pod)
    again = LearnedMix.load(learned.dump())
    assert again.mix() == learned.mix()
    assert again.arrivals == learned.arrivals
    assert [learned.see(pod) for pod in pods * 3] == [again.see(pod) for pod in pods * 3]
