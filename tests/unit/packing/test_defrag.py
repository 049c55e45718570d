"""Moves that make room: as few as there need be, and nothing is changed by looking for them."""

import numpy as np

from egpu.core.moves.defrag import Placed, Proposal, propose
from egpu.core.policies.baselines import BestFit
from egpu.core.policies.fleet import Fleet, Placement
from egpu.core.policies.shapes import Machine, Shape
from support.fleets import place_fits

HALF, WHOLE, PAIR = (Shape(1000, 1000, *rest) for rest in ((1, 500), (1, 1000), (2, 1000)))


def filled(*pods: tuple[Shape, Placement], cards: int = 2, nodes: int = 3) -> tuple[Fleet, list[Placed]]:
    fleet = Fleet([Machine(f"n{at}", 64_000, 64_000, cards) for at in range(nodes)])
    for shape, place in pods:
        fleet.take(shape, place)
    return fleet, [Placed(f"p{at}", shape, place) for at, (shape, place) in enumerate(pods)]


def moves(found: Proposal | None) -> list[tuple[str, int]]:
    assert found is not None
    return [(move.name, move.target.row) for move in found.moves]


def test_nothing_moves_where_it_fits() -> None:
    fleet, pods = filled((HALF, Placement(0, (0,))))
    assert moves(propose(fleet, BestFit(), pods, PAIR)) == []


def test_one_small_pod_moves_beside_another() -> None:
    fleet, pods = filled(
        (HALF, Placement(0, (0,))), (WHOLE, Placement(1, (0,))), (HALF, Placement(1, (1,))), (WHOLE, Placement(2, (1,)))
    )
    before = fleet.core.copy()
    found = propose(fleet, BestFit(), pods, PAIR)
    assert moves(found) == [("p0", 1)]
    assert found is not None
    assert found.place == Placement(0, (0, 1))
    assert np.array_equal(fleet.core, before)
    assert fleet.host.tolist() == [[63_000, 62_000, 63_000], [63_000, 62_000, 63_000]]


def test_no_room_anywhere() -> None:
    fleet, pods = filled(*[(WHOLE, Placement(row, (card,))) for row in range(3) for card in (0, 1)][:5])
    assert propose(fleet, BestFit(), pods, PAIR) is None


def test_the_proposal_holds_when_it_is_done() -> None:
    fleet, pods = filled(
        (HALF, Placement(0, (0,))), (HALF, Placement(0, (1,))), (HALF, Placement(1, (0,))), (HALF, Placement(2, (0,))),
        (WHOLE, Placement(1, (1,))), (WHOLE, Placement(2, (1,))),
    )  # fmt: skip
    found = propose(fleet, BestFit(), pods, PAIR)
    assert found is not None
    assert len(found.moves) == 2
    by_name = {pod.name: pod for pod in pods}
    for move in found.moves:
        assert place_fits(fleet, by_name[move.name].shape, move.target)
        fleet.take(by_name[move.name].shape, move.target)
        fleet.release(by_name[move.name].shape, move.origin)
    assert place_fits(fleet, PAIR, found.place)
