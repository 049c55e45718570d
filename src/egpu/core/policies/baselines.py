"""The usual policies: best-fit, GPU packing, dot product, random, binpack and spread.

Best-fit, GPU packing and dot product are as in the simulator of "Beware of Fragmentation" (USENIX ATC 2023), integer
scores included: rounding makes ties, and ties go to the lowest row, which is a policy of its own.
"""

import numpy as np

from egpu.core.arrays import FloatArray, IntArray
from egpu.core.policies.base import Policy
from egpu.core.policies.fleet import Fleet
from egpu.core.policies.shapes import WHOLE_CARD, Shape

_MOST_CPU_MILLI = 128_000
_MOST_GPU_MILLI = 8_000
"""The divisors of the published scores, whatever the cluster has."""


def _least_left(fleet: Fleet, shape: Shape, row: int, sign: int) -> tuple[int, ...]:
    """Return the columns that still fit and have least left; with `sign` -1 most."""
    core, memory = fleet.core[row].tolist(), fleet.card_memory[row].tolist()
    columns = fleet.eligible_cards(shape, row)
    ranked = sorted(columns, key=lambda column: (sign * core[column], sign * memory[column]))
    return tuple(sorted(ranked[: shape.cards]))


class _Tightest(Policy):
    """Uses the cards with least left that still fit."""

    def rank_cards(self, fleet: Fleet, shape: Shape, row: int) -> tuple[int, ...]:
        return _least_left(fleet, shape, row, 1)


class BestFit(_Tightest):
    """Prefers the node that has least left afterwards, CPU and GPU alike."""

    prefers = "with the least CPU and GPU left"

    def rank_nodes(self, fleet: Fleet, shape: Shape, rows: IntArray) -> FloatArray:
        cpu = (fleet.cpu[rows] - shape.cpu_milli) / _MOST_CPU_MILLI
        gpu = (fleet.gpu[rows] - shape.gpu_milli) / _MOST_GPU_MILLI
        return np.floor((1 - (cpu * 0.5 + gpu * 0.5)) * 100)


class DotProduct(_Tightest):
    """Prefers the node whose free resources differ most from the pod's direction."""

    prefers = "whose free resources match the request least"

    def rank_nodes(self, fleet: Fleet, shape: Shape, rows: IntArray) -> FloatArray:
        cpu = fleet.cpu[rows] * (shape.cpu_milli / _MOST_CPU_MILLI**2)
        gpu = fleet.gpu[rows] * (shape.gpu_milli / _MOST_GPU_MILLI**2)
        return np.floor((1 - (cpu + gpu) / 2) * 100)


class GpuPacking(_Tightest):
    """Prefers cards in use to free cards, and free cards of nodes in use to free nodes."""

    prefers = "with a card in use, then with free cards on a used node"

    def rank_nodes(self, fleet: Fleet, shape: Shape, rows: IntArray) -> FloatArray:
        if not shape.cards:
            return np.zeros(len(rows))
        full, count = fleet.full[rows], fleet.count[rows]
        core = fleet.core[rows]
        eligible = core >= shape.core_milli
        if shape.card_memory_mib:
            room = fleet.memory_room(shape, rows).T
            eligible &= room >= shape.card_memory_mib
        order = np.sort(np.where(eligible, core, 2 * WHOLE_CARD), axis=1)[:, : shape.cards]
        fresh = (order == WHOLE_CARD).sum(axis=1)
        left = (order // 10).sum(axis=1)
        in_use: IntArray = (100 - left // 10).clip(50)
        score: IntArray = np.where(fresh > 0, (50 - fresh).clip(33), in_use)
        on_free: IntArray = np.maximum(33 - full, full)
        return np.where(full == count, on_free, score).astype(np.float64)


class Random(Policy):
    """Uses any node that fits and any of its cards. Every decision draws again, so no score outlives it."""

    prefers = "that it draws"
    drawn = True

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def rank_nodes(self, fleet: Fleet, shape: Shape, rows: IntArray) -> FloatArray:
        self.generation += 1
        return self._random.random(len(rows))

    def rank_cards(self, fleet: Fleet, shape: Shape, row: int) -> tuple[int, ...]:
        columns = fleet.eligible_cards(shape, row)
        return tuple(sorted(self._random.choice(columns, size=shape.cards, replace=False).tolist()))


def _mean_used(fleet: Fleet, shape: Shape, rows: IntArray) -> FloatArray:
    """Return the allocated share of a node's cards with the pod placed, mean of compute and memory, 0..1."""
    count = np.maximum(fleet.count[rows], 1)
    core = (fleet.gpu[rows] - shape.gpu_milli) / (count * WHOLE_CARD)
    memory_total = count * np.maximum(fleet.card_memory_total[rows], 1)
    if not fleet.card_memory_total.any():
        return 1 - core
    memory = (fleet.card_memory[rows].sum(axis=1) - shape.cards * shape.card_memory_mib) / memory_total
    return 1 - (core + memory) / 2


class Binpack(_Tightest):
    """Prefers the node whose cards are fullest."""

    prefers = "with the fullest cards"

    def rank_nodes(self, fleet: Fleet, shape: Shape, rows: IntArray) -> FloatArray:
        return _mean_used(fleet, shape, rows)


class Spread(Policy):
    """Prefers the node whose cards are emptiest, and on it the emptiest card."""

    prefers = "with the emptiest cards"

    def rank_nodes(self, fleet: Fleet, shape: Shape, rows: IntArray) -> FloatArray:
        return -_mean_used(fleet, shape, rows)

    def rank_cards(self, fleet: Fleet, shape: Shape, row: int) -> tuple[int, ...]:
        return _least_left(fleet, shape, row, -1)
