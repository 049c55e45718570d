"""The pods to move so that more of the cluster can be allocated: proposals only.

Allocatable is what is allocated, and of the free GPU what the job mix could use in expectation
(`egpu.core.policies.fgd` computes what it could not). Each step makes the moves that raise it most per move: one pod,
or a few off one node, as a node is often worth something only when the last of them is gone. So any first part of the
steps is useful, and they end where a move is worth too little.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from egpu.core.arrays import IntArray
from egpu.core.moves.defrag import Move, Placed
from egpu.core.policies.fgd import Fgd
from egpu.core.policies.fleet import Fleet, Placement
from egpu.core.policies.placer import Placer
from egpu.core.policies.shapes import Mix, Shape

Accept = Callable[[Sequence[Move]], bool]
MOST_AT_ONCE: Final = 4
"""Pods taken off one node in one step."""
CLEARED: Final = 64
"""Nodes for which several pods at once are tried: those with most GPU that the mix cannot use."""


@dataclass(frozen=True)
class Step:
    """Moves that belong together, their gain, and the allocatable share of the capacity after them."""

    moves: tuple[Move, ...]
    gain_milli: float
    allocatable_percent: float


@dataclass(frozen=True)
class Raising:
    """The steps, and the allocatable share now."""

    now_percent: float
    steps: tuple[Step, ...]

    @property
    def then_percent(self) -> float:
        """The share after all steps."""
        return self.steps[-1].allocatable_percent if self.steps else self.now_percent


_Set = list[tuple[Placed, Placement]]


class _Moved:
    """The fleet with tentative moves, all taken back at the end."""

    def __init__(self, fleet: Fleet, fgd: Fgd, pods: Sequence[Placed], accept: Accept) -> None:
        self.fleet, self.fgd, self.accept = fleet, fgd, accept
        self.placer = Placer(fleet, fgd)
        self.done: _Set = []
        self.left: dict[int, list[Placed]] = {}
        """Pods that were not moved, by row."""
        for pod in pods:
            if pod.shape.cards:
                self.left.setdefault(pod.place.row, []).append(pod)

    def make(self, pod: Placed, target: Placement) -> None:
        self.fleet.release(pod.shape, pod.place)
        self.fleet.take(pod.shape, target)
        self.left[pod.place.row].remove(pod)
        self.done.append((pod, target))

    def take_back(self, count: int) -> None:
        for _ in range(count):
            pod, target = self.done.pop()
            self.fleet.release(pod.shape, target)
            self.fleet.take(pod.shape, pod.place)
            self.left[pod.place.row].append(pod)

    def accepted(self, more: _Set) -> bool:
        return self.accept([_move(*one) for one in (*self.done, *more)])

    def leaving(self, pod: Placed) -> float:
        """Return how much unusable GPU of its node the pod's departure removes; mostly below 0."""
        row: IntArray = np.array([pod.place.row])
        before = float(self.fgd.fragments(self.fleet, row)[0])
        self.fleet.release(pod.shape, pod.place)
        after = float(self.fgd.fragments(self.fleet, row)[0])
        self.fleet.take(pod.shape, pod.place)
        return before - after

    def best_places(self, shape: Shape) -> list[tuple[float, int]]:
        """Return the mix's gain on the pod's two best nodes: one of them is not its present one."""
        scores = self.placer.scores(shape)
        order = np.argsort(-scores, kind="stable")[:2].tolist()
        return [(float(scores[row]), row) for row in order if scores[row] > -np.inf]

    def place(self, shape: Shape, row: int) -> Placement:
        return Placement(row, self.placer.policy.rank_cards(self.fleet, shape, row))


def raise_share(
    fleet: Fleet,
    mix: Mix,
    pods: Sequence[Placed],
    *,
    max_moves: int,
    least_gain_milli: int,
    accept: Accept = lambda _: True,
) -> Raising:
    """Return up to `max_moves` moves of different pods to other nodes, each worth at least `least_gain_milli`
    thousandths of a card on the mean of its step.

    `accept` tells whether all moves so far and the next are possible. The search changes the fleet, and restores it.
    """
    fgd = Fgd(mix, fleet.models, quantised=False)
    moved = _Moved(fleet, fgd, pods, accept)
    capacity, waste = max(fleet.capacity_milli, 1), float(fgd.fragments(fleet).sum())
    now, steps = 100 * (capacity - waste) / capacity, list[Step]()
    try:
        while (room := max_moves - len(moved.done)) > 0:
            offers = [
                offer
                for offer in (_one(moved, least_gain_milli), _several(moved, room, least_gain_milli))
                if offer is not None
            ]
            if not offers:
                break
            gain, chosen = max(offers, key=lambda offer: (offer[0] / len(offer[1]), -len(offer[1])))
            for pod, target in chosen:
                moved.make(pod, target)
            waste -= gain
            steps.append(Step(tuple(_move(*one) for one in chosen), gain, 100 * (capacity - waste) / capacity))
    finally:
        moved.take_back(len(moved.done))
    return Raising(now, tuple(steps))


def _one(moved: _Moved, least: int) -> tuple[float, _Set] | None:
    """Return the accepted single move with the largest gain."""
    pods = [pod for there in moved.left.values() for pod in there]
    places = {shape: moved.best_places(shape) for shape in {pod.shape for pod in pods}}
    ranked: list[tuple[float, int, str, Placed, int]] = []
    for pod in pods:
        target = next((pair for pair in places[pod.shape] if pair[1] != pod.place.row), None)
        if target is not None and (gain := moved.leaving(pod) + target[0]) >= least:
            ranked.append((-gain, pod.shape.gpu_milli, pod.name, pod, target[1]))
    for negative, _, _, pod, row in sorted(ranked, key=lambda entry: entry[:3]):
        chosen = [(pod, moved.place(pod.shape, row))]
        if moved.accepted(chosen):
            return -negative, chosen
    return None


def _several(moved: _Moved, room: int, least: int) -> tuple[float, _Set] | None:
    """Return the accepted moves of several pods off one node with the largest gain per move."""
    waste = moved.fgd.fragments(moved.fleet)
    best: tuple[float, _Set] | None = None
    for row in np.argsort(-waste, kind="stable")[:CLEARED].tolist():
        made: _Set = []
        total = 0.0
        while len(made) < min(MOST_AT_ONCE, room) and (found := _next(moved, row)) is not None:
            gain, pod, target = found
            moved.make(pod, target)
            made.append((pod, target))
            total += gain
            rate = total / len(made)
            if len(made) > 1 and rate >= least and (best is None or rate > best[0] / len(best[1])):
                if not moved.accepted([]):
                    break
                best = (total, list(made))
        moved.take_back(len(made))
    return best


def _next(moved: _Moved, row: int) -> tuple[float, Placed, Placement] | None:
    """Return the pod of this node whose move to another gains most, or loses least."""
    best: tuple[float, Placed, int] | None = None
    for pod in sorted(moved.left.get(row, ()), key=lambda pod: (pod.shape.gpu_milli, pod.name)):
        target = next((pair for pair in moved.best_places(pod.shape) if pair[1] != row), None)
        if target is not None:
            gain = moved.leaving(pod) + target[0]
            if best is None or gain > best[0]:
                best = (gain, pod, target[1])
    if best is None:
        return None
    gain, pod, target_row = best
    return gain, pod, moved.place(pod.shape, target_row)


def _move(pod: Placed, target: Placement) -> Move:
    return Move(pod.name, pod.place, target, pod.shape.gpu_milli)
