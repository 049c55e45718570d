"""The worth of a remainder of a card for the job mix: prices from a configuration LP.

The smallest number of cards that the mix could be packed on, fractions allowed, is a linear programme over *patterns*
(sets of shares that fit on one card together). Its dual gives each share a price, in cards, and a remainder is worth
the best sum of prices that fits in it: a knapsack. Patterns are generated as they are needed (Gilmore & Gomory 1961).
HiGHS solves each round; this takes well below a second, and never happens on the scheduling path.

Dual prices jump with the mix: a few pods more of one share, and another pattern is the tightest. The known mix is a
sample, so prices are the mean over other possible samples: as many pods of each share as a Poisson draw around the
number seen. The random numbers are the same every time.

A card has two dimensions, compute in thousandths and memory in `MEMORY_LEVELS` equal parts; without memory demands the
second has size one. Requested amounts are rounded up and remainders down, so nothing fits by mistake.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from egpu.core.arrays import FloatArray, IntArray
from egpu.core.policies.shapes import WHOLE_CARD
from egpu_base.errors import MissingExtra

MEMORY_LEVELS: Final = 32
MAX_ROUNDS: Final = 400
SAMPLES: Final = 32
"""Samples over which prices are averaged."""
MAX_SHARES: Final = 256
"""Kinds of shares that are priced one by one: the most requested ones."""
_FINE_STEP = 10
_TOLERANCE = 1e-7


@dataclass(frozen=True)
class Share:
    """A share of one card: compute in thousandths, memory in levels (0 if memory plays no part), and its weight."""

    core_milli: int
    memory: int
    weight: float


@dataclass(frozen=True)
class Worth:
    """The worth of remainders: `table[core, memory]` in cards (0..1), shape (1001, 1 or MEMORY_LEVELS + 1)."""

    table: FloatArray

    @property
    def levels(self) -> int:
        """Levels of memory, 0 if memory plays no part."""
        return self.table.shape[1] - 1


@dataclass(frozen=True)
class _Knapsack:
    """An unbounded knapsack over (core, memory) on a grid of `step` thousandths."""

    cores: IntArray
    memories: IntArray
    height: int
    width: int

    def solve(self, prices: FloatArray) -> tuple[FloatArray, IntArray]:
        """Return the best value per cell, and the last share there (-1: the value is that of a smaller cell)."""
        value = np.zeros((self.height + 1, self.width + 1))
        last = np.full((self.height + 1, self.width + 1), -1, dtype=np.int64)
        columns = np.arange(self.width + 1)
        for core in range(self.height + 1):
            if core:
                value[core] = value[core - 1]
            able = np.flatnonzero((self.cores <= core) & (self.cores > 0))
            if len(able):
                at = columns[None, :] - self.memories[able, None]
                found = value[(core - self.cores[able])[:, None], np.maximum(at, 0)] + prices[able, None]
                found = np.where(at >= 0, found, -1.0)
                best = found.argmax(axis=0)
                better = found[best, columns] > value[core] + 1e-12
                value[core][better] = found[best, columns][better]
                last[core][better] = able[best[better]]
            for column in range(1, self.width + 1):
                if value[core, column] < value[core, column - 1] - 1e-12:
                    value[core, column] = value[core, column - 1]
                    last[core, column] = -2
                for share in np.flatnonzero((self.cores == 0) & (self.memories <= column)).tolist():
                    found_here = value[core, column - self.memories[share]] + prices[share]
                    if found_here > value[core, column] + 1e-12:
                        value[core, column] = found_here
                        last[core, column] = share
        return value, last

    def pattern(self, last: IntArray) -> FloatArray:
        """Return how often each share is in the best packing of a whole card."""
        counts = np.zeros(len(self.cores))
        core, column = self.height, self.width
        while core > 0 or column > 0:
            share = int(last[core, column])
            if share == -2:
                column -= 1
            elif share == -1:
                if not core:
                    break
                core -= 1
            else:
                counts[share] += 1
                core -= int(self.cores[share])
                column -= int(self.memories[share])
        return counts


def solver() -> Any:
    """Return the module of HiGHS, which not every program with policies needs. Raises MissingExtra."""
    try:
        import highspy  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("the policy price", package="highspy", extra="prices") from error
    return highspy


class _Programme:
    """Column generation. Patterns are kept, so that other weights of the same shares take few more rounds."""

    def __init__(self, knapsack: _Knapsack) -> None:
        self._knapsack = knapsack
        self._count = len(knapsack.cores)
        highs = solver()
        self._infinity: float = highs.kHighsInf
        self._model: Any = highs.Highs()
        self._model.setOptionValue("output_flag", False)
        self._model.setOptionValue("threads", 1)
        for _ in range(self._count):
            self._model.addRow(0.0, self._infinity, 0, np.zeros(0, dtype=np.int32), np.zeros(0))
        for share in range(self._count):
            limits = [knapsack.height // int(knapsack.cores[share])] if knapsack.cores[share] else []
            limits += [knapsack.width // int(knapsack.memories[share])] if knapsack.memories[share] else []
            self._add(np.where(np.arange(self._count) == share, float(min(limits)), 0.0))

    def _add(self, pattern: FloatArray) -> None:
        rows = np.flatnonzero(pattern).astype(np.int32)
        self._model.addCol(1.0, 0.0, self._infinity, len(rows), rows, pattern[rows])

    def worth(self, weights: FloatArray) -> FloatArray:
        """Return the worth of each remainder by the dual prices, as a share of the whole card."""
        for share, weight in enumerate(weights.tolist()):
            self._model.changeRowBounds(share, weight, self._infinity)
        value, pattern = self._round()
        for _ in range(MAX_ROUNDS):
            if value[-1, -1] <= 1 + _TOLERANCE:
                break
            self._add(pattern)
            value, pattern = self._round()
        return value / max(float(value[-1, -1]), 1e-9)

    def _round(self) -> tuple[FloatArray, FloatArray]:
        """Return the worth of remainders by the known patterns, and the pattern that is worth most by it."""
        self._model.run()
        prices = np.maximum(np.array(self._model.getSolution().row_dual), 0.0)
        value, last = self._knapsack.solve(prices)
        return value, self._knapsack.pattern(last)


def worth_of_remainders(shares: Sequence[Share], memory_levels: int = 0) -> Worth:
    """Return the worth of every remainder of a card, for a mix of shares; without shares only of a whole card."""
    able = [
        share
        for share in shares
        if share.weight > 0
        and share.core_milli + share.memory > 0
        and share.core_milli <= WHOLE_CARD
        and share.memory <= memory_levels
    ]
    table = np.zeros((WHOLE_CARD + 1, memory_levels + 1))
    if not able:
        table[WHOLE_CARD, memory_levels] = 1.0
        return Worth(table)
    able = sorted(able, key=lambda share: -share.weight)[:MAX_SHARES]
    step = math.gcd(WHOLE_CARD, *(share.core_milli for share in able))
    if memory_levels:
        step = max(step, _FINE_STEP)
    programme = _Programme(
        _Knapsack(
            cores=np.array([-(-share.core_milli // step) for share in able]),
            memories=np.array([share.memory for share in able]),
            height=WHOLE_CARD // step,
            width=memory_levels,
        )
    )
    seen = np.array([share.weight for share in able])
    random = np.random.default_rng(0)
    drawn = random.poisson(seen, (SAMPLES, len(able))).astype(np.float64)
    found = np.array([programme.worth(weights) for weights in (seen, *drawn) if weights.any()])
    table[:] = found.mean(axis=0)[np.arange(WHOLE_CARD + 1) // step]
    return Worth(table)
