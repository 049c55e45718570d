"""The best place for a pod, from score rows that are refreshed only where nodes changed.

There is one row of scores per pod shape. When a shape is asked for again, only the nodes that changed since are scored,
and one argmax answers. So a decision costs the changes since the shape's last turn, not the size of the cluster.
"""

import itertools
from collections import OrderedDict
from typing import Final

import numpy as np

from egpu.core.arrays import BoolArray, FloatArray, IntArray
from egpu.core.policies.base import Marks, Policy
from egpu.core.policies.fleet import FULL, Fleet, Placement
from egpu.core.policies.shapes import Shape

ROWS_LIMIT: Final = 1024
"""Shapes whose score rows are cached; the least recently used is forgotten first."""
LATELY: Final = 16
"""The latest shapes, which will be asked for again soon."""


class _Row:
    """The scores and needs of a shape."""

    __slots__ = ("_allowed", "_lanes_matter", "_least", "_shape", "generation", "marks", "scores", "version")

    def __init__(self, fleet: Fleet, shape: Shape) -> None:
        whole, count = shape.cards if shape.whole else 0, len(fleet)
        self._shape = shape
        self._allowed = fleet.allowed(shape)
        self._least: IntArray = np.array(
            [[shape.cpu_milli], [shape.ram_mib], [shape.core_milli], [whole]], dtype=np.int64
        )
        self._lanes_matter = bool(shape.card_memory_mib) or (shape.cards > 1 and not whole)
        self.scores: FloatArray = np.full(count, -np.inf)
        self.marks: Marks = np.zeros(count, dtype=np.uint8)
        self.version = -1
        self.generation = -1

    def fitting(self, fleet: Fleet, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return those of `rows` that can take the pod now, and the fleet's state there."""
        state: IntArray = fleet.state if rows is fleet.all_rows else fleet.state.take(rows, axis=1)
        fit = np.logical_and.reduce(state[: FULL + 1] >= self._least)
        if self._allowed is not None:
            fit &= self._allowed.take(rows)
        if self._lanes_matter:
            fit &= self._fit_cards(fleet, rows)
        at = fit.nonzero()[0]
        if len(at) == len(rows):
            return rows, state
        return rows[at], np.take(state, at, axis=1)

    def _fit_cards(self, fleet: Fleet, rows: IntArray) -> BoolArray:
        shape = self._shape
        if shape.whole:
            return fleet.card_memory_total.take(rows) >= shape.card_memory_mib
        eligible = fleet.lanes.take(rows, axis=1) >= shape.core_milli
        eligible &= fleet.memory_room(shape, rows) >= shape.card_memory_mib
        return eligible.sum(axis=0) >= shape.cards


class Placer:
    """A fleet and the policy that decides on it."""

    def __init__(self, fleet: Fleet, policy: Policy) -> None:
        self.fleet = fleet
        self.policy = policy
        self._rows: OrderedDict[Shape, _Row] = OrderedDict()

    def scores(self, shape: Shape) -> FloatArray:
        """Return the scores of every node now, -inf if the pod does not fit, shape (nodes,). Not a copy."""
        fleet, policy = self.fleet, self.policy
        policy.attend(fleet)
        row = self._rows.get(shape)
        if row is None:
            row = self._rows[shape] = _Row(fleet, shape)
            if len(self._rows) > ROWS_LIMIT:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(shape)
        if row.version < fleet.version or row.generation != policy.generation:
            self._refresh(row, shape)
        charges = policy.charges()
        return row.scores if charges is None else row.scores - charges.take(row.marks)

    def freshen(self) -> bool:
        """Score every node again for one of the latest shapes whose scores are all invalid, as after new prices; return
        False if there is none. So this happens in idle time, not when the next pod is asked about."""
        if self.policy.drawn:
            return False
        for shape, row in itertools.islice(reversed(self._rows.items()), LATELY):
            if row.generation != self.policy.generation:
                self._refresh(row, shape)
                return True
        return False

    def _refresh(self, row: _Row, shape: Shape) -> None:
        """Score the nodes that changed since the row's last use."""
        fleet, policy = self.fleet, self.policy
        if row.version >= 0 and row.generation == policy.generation:
            self._score(row, shape, fleet.changed_since(row.version))
        elif policy.drawn:
            self._score(row, shape, fleet.all_rows)
        else:
            distinct, pristine, stand_in = fleet.alike()
            row.marks.fill(0)
            self._score(row, shape, distinct)
            row.scores[pristine] = row.scores.take(stand_in)
            row.marks[pristine] = row.marks.take(stand_in)
        row.version, row.generation = fleet.version, policy.generation

    def _score(self, row: _Row, shape: Shape, rows: IntArray) -> None:
        row.scores[rows] = -np.inf
        rows, state = row.fitting(self.fleet, rows)
        if len(rows):
            row.scores[rows], row.marks[rows] = self.policy.rank_and_mark(self.fleet, shape, rows, state)

    def find(self, shape: Shape) -> Placement | None:
        """Return the policy's best place, or None if the pod fits nowhere. Changes nothing."""
        scores = self.scores(shape)
        best = int(scores.argmax()) if len(scores) else -1
        if best < 0 or scores[best] == -np.inf:
            return None
        return Placement(best, self.policy.rank_cards(self.fleet, shape, best) if shape.cards else ())

    def place(self, shape: Shape) -> Placement | None:
        """Find the best place, and take it."""
        place = self.find(shape)
        if place is not None:
            self.fleet.take(shape, place)
        return place
