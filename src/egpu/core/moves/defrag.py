"""The pods to move so that a pending demand fits: proposals only.

Nodes are tried one by one: the pods that have to leave there are chosen cheapest first, and each needs another place.
The proposal with the fewest moves wins; of equals, the one that moves least GPU. The search is exact for one move and
greedy beyond, where the fewest moves are hard to find; a bound limits its time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from egpu.core.policies.base import Policy
from egpu.core.policies.fleet import Fleet, Placement
from egpu.core.policies.placer import Placer
from egpu.core.policies.shapes import Shape

MAX_MOVES: Final = 16
"""Moves for one demand; more would rebuild the cluster."""


@dataclass(frozen=True)
class Placed:
    """A pod and its place."""

    name: str
    shape: Shape
    place: Placement


@dataclass(frozen=True)
class Move:
    """A pod's move from one place to another."""

    name: str
    origin: Placement
    target: Placement
    gpu_milli: int


@dataclass(frozen=True)
class Proposal:
    """The moves, in an order in which each finds room, and the place of the demand afterwards."""

    moves: tuple[Move, ...]
    place: Placement


def propose(
    fleet: Fleet,
    policy: Policy,
    pods: Sequence[Placed],
    demand: Shape,
    *,
    max_moves: int = MAX_MOVES,
    accept: Callable[["Proposal"], bool] = lambda _: True,
) -> Proposal | None:
    """Return the fewest moves found that let `demand` in; no moves if it fits already; None if none were found.

    `accept` may refuse a proposal. The search changes the fleet, and restores it.
    """
    placer = Placer(fleet, policy)
    if (place := placer.find(demand)) is not None and accept(Proposal((), place)):
        return Proposal((), place)
    allowed = fleet.allowed(demand)
    best: Proposal | None = None
    by_row: dict[int, list[Placed]] = {}
    for pod in pods:
        by_row.setdefault(pod.place.row, []).append(pod)
    for row, there in sorted(by_row.items()):
        machine = fleet.machines[row]
        enough = machine.cpu_milli >= demand.cpu_milli and machine.ram_mib >= demand.ram_mib
        if machine.cards < demand.cards or not enough or (allowed is not None and not allowed[row]):
            continue
        limit = max_moves if best is None else len(best.moves)
        found = _clear(placer, there, row, demand, limit=limit, accept=accept)
        if found is not None and (best is None or _weight(found) < _weight(best)):
            best = found
    return best


def _weight(proposal: Proposal) -> tuple[int, int]:
    return len(proposal.moves), sum(move.gpu_milli for move in proposal.moves)


def _clear(
    placer: Placer, there: Sequence[Placed], row: int, demand: Shape, *, limit: int, accept: Callable[[Proposal], bool]
) -> Proposal | None:
    """Move pods off one node until the demand fits: one pod if one suffices, else the smallest first."""
    smallest = sorted(there, key=lambda pod: (pod.shape.gpu_milli, pod.shape.cpu_milli, pod.name))
    if limit >= 1:
        for pod in smallest:
            if (found := _try(placer, [pod], row, demand)) is not None and accept(found):
                return found
    for count in range(2, min(limit, len(smallest)) + 1):
        if (found := _try(placer, smallest[:count], row, demand)) is not None and accept(found):
            return found
    return None


def _try(placer: Placer, leaving: Sequence[Placed], row: int, demand: Shape) -> Proposal | None:
    """Take these pods off, put the demand there, and look for other places for them."""
    fleet = placer.fleet
    taken: list[tuple[Shape, Placement]] = []
    for pod in leaving:
        fleet.release(pod.shape, pod.place)
    try:
        place = _on(placer, demand, row)
        if place is None:
            return None
        fleet.take(demand, place)
        taken.append((demand, place))
        moves: list[Move] = []
        for pod in sorted(leaving, key=lambda pod: -pod.shape.gpu_milli):
            target = placer.find(pod.shape)
            if target is None or target.row == row:
                return None
            fleet.take(pod.shape, target)
            taken.append((pod.shape, target))
            moves.append(Move(pod.name, pod.place, target, pod.shape.gpu_milli))
        return Proposal(tuple(moves), place)
    finally:
        for shape, place in reversed(taken):
            fleet.release(shape, place)
        for pod in leaving:
            fleet.take(pod.shape, pod.place)


def _on(placer: Placer, shape: Shape, row: int) -> Placement | None:
    """Return a place on this node, if there is one now."""
    if placer.scores(shape)[row] == -float("inf"):
        return None
    return Placement(row, placer.policy.rank_cards(placer.fleet, shape, row) if shape.cards else ())
