"""Moves that make more of the cluster usable: each worth it, the best first, and nothing is changed by looking."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from egpu.core.moves.defrag import Move, Placed
from egpu.core.moves.raising import Raising, raise_share
from egpu.core.policies.fgd import Fgd
from egpu.core.policies.fleet import Fleet, Placement
from egpu.core.policies.shapes import Machine, Mix, Shape
from support.fleets import place_fits

HALF, WHOLE, PAIR = (Shape(1000, 1000, *rest) for rest in ((1, 500), (1, 1000), (2, 1000)))
SMALL = Shape(1000, 1000, 1, 300)
MIX = Mix({HALF: 1, WHOLE: 2, PAIR: 2})


def filled(*pods: tuple[Shape, Placement], nodes: int = 3) -> tuple[Fleet, list[Placed]]:
    fleet = Fleet([Machine(f"n{at}", 64_000, 64_000, 2) for at in range(nodes)])
    for shape, place in pods:
        fleet.take(shape, place)
    return fleet, [Placed(f"p{at}", shape, place) for at, (shape, place) in enumerate(pods)]


def moves(found: Raising) -> list[list[str]]:
    return [[move.name for move in step.moves] for step in found.steps]


def allocatable(fleet: Fleet, mix: Mix) -> float:
    wasted = float(Fgd(mix, fleet.models, quantised=False).fragments(fleet).sum())
    return 100 * (fleet.capacity_milli - wasted) / fleet.capacity_milli


def test_two_halves_are_put_together() -> None:
    fleet, pods = filled((HALF, Placement(0, (0,))), (HALF, Placement(1, (1,))), (WHOLE, Placement(2, (0,))))
    found = raise_share(fleet, MIX, pods, max_moves=4, least_gain_milli=50)
    assert found.then_percent > found.now_percent
    assert len(found.steps[0].moves) == 1


def test_a_node_is_cleared_where_only_the_last_move_gains() -> None:
    """A half on each card: taking one off frees no pair and makes nothing better; both do."""
    halves = [(HALF, Placement(row, (card,))) for row in (0, 1) for card in (0, 1)]
    fleet, pods = filled(*halves, nodes=2)
    mix = Mix({HALF: 4, PAIR: 1})
    assert raise_share(fleet, mix, pods, max_moves=1, least_gain_milli=50).steps == ()
    (step,) = raise_share(fleet, mix, pods, max_moves=4, least_gain_milli=50).steps
    assert len(step.moves) == 2
    assert len({move.origin.row for move in step.moves}) == 1
    assert step.allocatable_percent == 100


def test_a_packed_cluster_is_left_alone() -> None:
    fleet, pods = filled((WHOLE, Placement(0, (0,))), (WHOLE, Placement(0, (1,))), (PAIR, Placement(1, (0, 1))))
    found = raise_share(fleet, MIX, pods, max_moves=4, least_gain_milli=50)
    assert found.steps == ()
    assert found.now_percent == found.then_percent == allocatable(fleet, MIX)


def test_a_move_that_is_refused_is_not_proposed() -> None:
    fleet, pods = filled((HALF, Placement(0, (0,))), (HALF, Placement(1, (1,))), (WHOLE, Placement(2, (0,))))
    asked: list[list[str]] = []

    def only_p1(wanted: Sequence[Move]) -> bool:
        asked.append([move.name for move in wanted])
        return wanted[-1].name == "p1"

    found = raise_share(fleet, MIX, pods, max_moves=4, least_gain_milli=50, accept=only_p1)
    assert moves(found) == [["p1"]]
    assert len(asked) > 1


shapes = st.sampled_from([HALF, WHOLE, PAIR, SMALL])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(shapes, st.integers(0, 4), st.integers(0, 1)), max_size=12), st.integers(1, 5))
def test_what_is_promised_is_what_comes_of_it(wanted: list[tuple[Shape, int, int]], most: int) -> None:
    fleet, pods = filled(nodes=5)
    for number, (shape, row, card) in enumerate(wanted):
        cards = (0, 1) if shape.cards == 2 else (card,)
        place = Placement(row, cards)
        if place_fits(fleet, shape, place):
            fleet.take(shape, place)
            pods.append(Placed(f"p{number}", shape, place))
    before = (fleet.core.copy(), fleet.host.copy(), fleet.full.copy())
    found = raise_share(fleet, MIX, pods, max_moves=most, least_gain_milli=1)
    after = (fleet.core, fleet.host, fleet.full)
    assert all(np.array_equal(then, now) for then, now in zip(before, after, strict=True))
    assert sum(len(step.moves) for step in found.steps) <= most
    assert abs(found.now_percent - allocatable(fleet, MIX)) < 1e-6
    by_name = {pod.name: pod for pod in pods}
    share = found.now_percent
    for step in found.steps:
        for move in step.moves:
            pod = by_name.pop(move.name)  # nobody is moved twice
            assert move.target.row != move.origin.row
            fleet.release(pod.shape, move.origin)
            assert place_fits(fleet, pod.shape, move.target)
            fleet.take(pod.shape, move.target)
        assert abs(step.allocatable_percent - allocatable(fleet, MIX)) < 1e-6
        assert step.allocatable_percent > share
        share = step.allocatable_percent
