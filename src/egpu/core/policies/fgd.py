"""Fragmentation gradient descent, after "Beware of Fragmentation" (USENIX ATC 2023).

A node's fragmentation is the GPU that the typical job mix could not use there, in expectation. The pod goes where it
raises that least. Faithful to the authors' simulator in what the result hangs on: the score is
floor(100 · sigmoid(-rise / 1000)), so most nodes tie, and ties go to the lowest row; without the rounding the policy
allocates far less.

The expectation is a sum over job shapes. A shape that asks one card can use every card with enough left, if the node
has the CPU; one that asks k whole cards can use the untouched ones, if there are k. So the usable GPU of a node is a
sum of table entries: one per card (what is left of it, CPU left), one per node (untouched cards, CPU left).
"""

import numpy as np

from egpu.core.arrays import FloatArray, IntArray
from egpu.core.policies.base import Policy
from egpu.core.policies.fleet import Fleet
from egpu.core.policies.shapes import WHOLE_CARD, Mix, Shape

_MOST_CARDS = 16


class Fgd(Policy):
    """The policy `fgd`. `mix` has the typical shapes; `quantised` False omits the rounding, for comparison."""

    prefers = "where the GPU that typical jobs cannot use grows least"

    def __init__(self, mix: Mix, models: tuple[str, ...], *, quantised: bool = True) -> None:
        self._quantised = quantised
        self._models = models
        self.mix_changed(mix)

    def mix_changed(self, mix: Mix) -> None:
        self.generation += 1
        typical = mix.typical()
        self._levels: IntArray = np.unique([shape.cpu_milli for shape, _ in typical]).astype(np.int64)
        count = len(self._levels) + 1
        single = np.zeros((len(self._models), count, WHOLE_CARD + 1))
        several = np.zeros((len(self._models), count, _MOST_CARDS + 1))
        for shape, share in typical:
            if not shape.cards:
                continue
            level = int(np.searchsorted(self._levels, shape.cpu_milli, side="right"))
            for code, model in enumerate(self._models):
                if shape.models and model not in shape.models:
                    continue
                if shape.cards == 1:
                    left = np.arange(shape.core_milli, WHOLE_CARD + 1)
                    single[code, level:, shape.core_milli :] += share * left
                else:
                    untouched = np.arange(shape.cards, _MOST_CARDS + 1)
                    several[code, level:, shape.cards :] += share * WHOLE_CARD * untouched
        self._single, self._several = single.reshape(-1), several.reshape(-1)
        self._level_count = count

    def _base(self, fleet: Fleet, rows: IntArray, cpu: IntArray) -> IntArray:
        level = np.searchsorted(self._levels, cpu, side="right")
        return fleet.model[rows] * self._level_count + level

    def fragments(self, fleet: Fleet, rows: IntArray | None = None) -> FloatArray:
        """Return the expected GPU that the mix cannot use, per node (all, or these), in thousandths of a card."""
        rows = fleet.all_rows if rows is None else rows
        base = self._base(fleet, rows, fleet.cpu.take(rows))
        usable = self._single.take(base * (WHOLE_CARD + 1) + fleet.lanes.take(rows, axis=1)).sum(axis=0)
        usable += self._several.take(base * (_MOST_CARDS + 1) + fleet.full.take(rows))
        return fleet.gpu.take(rows) - usable

    def _rises(self, fleet: Fleet, shape: Shape, rows: IntArray) -> FloatArray:
        """Return the rise of fragmentation, shape (cards, rows); (1, rows) if it is equal for all cards that fit."""
        core, full, cpu = fleet.lanes.take(rows, axis=1), fleet.full.take(rows), fleet.cpu.take(rows)
        before_at, after_at = self._base(fleet, rows, cpu), self._base(fleet, rows, cpu - shape.cpu_milli)
        card_before, card_after = before_at * (WHOLE_CARD + 1), after_at * (WHOLE_CARD + 1)
        node_before, node_after = before_at * (_MOST_CARDS + 1), after_at * (_MOST_CARDS + 1)
        usable_before = self._single.take(card_before + core).sum(axis=0)
        usable_before += self._several.take(node_before + full)
        kept = self._single.take(card_after + core)
        usable_kept = kept.sum(axis=0)
        if shape.cards == 1:
            left: IntArray = (core - shape.core_milli).clip(0)
            changed = self._single.take(card_after + left) - kept
            untouched: IntArray = (full - (core == WHOLE_CARD)).clip(0)
            usable_after: FloatArray = usable_kept + changed + self._several.take(node_after + untouched)
        else:
            # Several whole cards are always untouched ones, and so equal.
            whole = self._single.take(card_after + WHOLE_CARD) if shape.cards else 0
            several = self._several.take(node_after + full - shape.cards)
            usable_after = (usable_kept - shape.cards * whole + several)[None, :]
        return usable_before - usable_after - shape.gpu_milli

    def _scores(self, fleet: Fleet, shape: Shape, rows: IntArray) -> FloatArray:
        rises = self._rises(fleet, shape, rows).round(6)  # sums of shares: rounding makes zeros exact
        scores = np.floor(100 / (1 + np.exp(rises / 1000))) if self._quantised else -rises
        if shape.cards == 1:
            eligible = fleet.lanes.take(rows, axis=1) >= shape.core_milli
            if shape.card_memory_mib:
                eligible &= fleet.memory_room(shape, rows) >= shape.card_memory_mib
            scores = np.where(eligible, scores, -np.inf)
        return scores

    def rank_nodes(self, fleet: Fleet, shape: Shape, rows: IntArray) -> FloatArray:
        return self._scores(fleet, shape, rows).max(axis=0)

    def rank_cards(self, fleet: Fleet, shape: Shape, row: int) -> tuple[int, ...]:
        if shape.cards != 1:
            return tuple(fleet.eligible_cards(shape, row)[: shape.cards])
        return (int(self._scores(fleet, shape, np.array([row]))[:, 0].argmax()),)
