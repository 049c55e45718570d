"""The best place for a pod, from score rows that are refreshed only where something changed.

One row of scores per pod shape; when a shape is asked for again, only the nodes that changed since are scored, and one
argmax answers. So a decision costs the changes since the shape's last turn, not the size of the cluster.
"""

from collections import OrderedDict
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from egpu.core.arrays import BoolArray, FloatArray, IntArray
from egpu.core.policies.fleet import FULL, Fleet, Placement
from egpu.core.policies.shapes import Shape

ROWS_LIMIT: Final = 1024
"""Shapes whose score rows are kept; the one longest unasked is forgotten first."""


class Scorer(Protocol):
    """A policy. More is better. Ties between nodes go to the lowest row, between cards to the lowest column.

    `generation` grows when scores given earlier no longer hold (new prices, a new mix): all rows are then scored anew.
    """

    generation: int

    def scores(self, fleet: Fleet, shape: Shape, rows: IntArray) -> FloatArray:
        """How good each row would be, shape (rows,), whether or not the pod fits there."""
        ...

    def cards(self, fleet: Fleet, shape: Shape, row: int) -> tuple[int, ...]:
        """The columns to use on a row that fits."""
        ...


Marks = NDArray[np.uint8]


@runtime_checkable
class Reserving(Scorer, Protocol):
    """A policy that also keeps something back whose worth depends on the whole cluster.

    A score holds until its node changes; what is scarce changes with every placement anywhere. So a row carries, per
    node, a mark of *what* would be used up there, and the price of each mark is looked up when the decision is made.
    """

    def scored(self, fleet: Fleet, shape: Shape, rows: IntArray, state: IntArray) -> tuple[FloatArray, Marks]:
        """`scores` (`state` is the fleet's at `rows`), and what the pod would use up on each row, as an index into
        `charges`; 0 is nothing."""
        ...

    def attend(self, fleet: Fleet) -> None:
        """Look at what changed in the fleet, before a decision; `generation` may grow by it."""
        ...

    def charges(self, fleet: Fleet) -> FloatArray | None:
        """What each mark costs now, to be taken off the score; None when nothing costs anything."""
        ...


class _Row:
    """A shape's scores, and what it needs."""

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
        """Those of `rows` that can take the pod now, and the fleet's state there."""
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
        eligible &= fleet.memory_lanes.take(rows, axis=1) >= shape.card_memory_mib
        return eligible.sum(axis=0) >= shape.cards


class Placer:
    """A fleet and the scorer that decides on it."""

    def __init__(self, fleet: Fleet, scorer: Scorer) -> None:
        self.fleet = fleet
        self.scorer = scorer
        self._reserving = scorer if isinstance(scorer, Reserving) else None
        self._rows: OrderedDict[Shape, _Row] = OrderedDict()

    def scores(self, shape: Shape) -> FloatArray:
        """Scores of every node now, -inf where the pod does not fit, shape (nodes,). Not a copy."""
        fleet = self.fleet
        if self._reserving is not None:
            self._reserving.attend(fleet)
        row = self._rows.get(shape)
        if row is None:
            row = self._rows[shape] = _Row(fleet, shape)
            if len(self._rows) > ROWS_LIMIT:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(shape)
        if row.version < fleet.version or row.generation != self.scorer.generation:
            self._refresh(row, shape)
        charges = self._reserving.charges(fleet) if self._reserving is not None else None
        return row.scores if charges is None else row.scores - charges.take(row.marks)

    def _refresh(self, row: _Row, shape: Shape) -> None:
        """Score the nodes that changed since the row was last asked for."""
        fleet = self.fleet
        if row.version >= 0 and row.generation == self.scorer.generation:
            self._score(row, shape, fleet.changed_since(row.version))
        elif self._reserving is None:
            self._score(row, shape, fleet.all_rows)
        else:
            distinct, pristine, stand_in = fleet.alike()
            row.marks.fill(0)
            self._score(row, shape, distinct)
            row.scores[pristine] = row.scores.take(stand_in)
            row.marks[pristine] = row.marks.take(stand_in)
        row.version, row.generation = fleet.version, self.scorer.generation

    def _score(self, row: _Row, shape: Shape, rows: IntArray) -> None:
        fleet, scores = self.fleet, row.scores
        scores[rows] = -np.inf
        rows, state = row.fitting(fleet, rows)
        if not len(rows):
            return
        if self._reserving is None:
            scores[rows] = self.scorer.scores(fleet, shape, rows)
        else:
            scores[rows], row.marks[rows] = self._reserving.scored(fleet, shape, rows, state)

    def find(self, shape: Shape) -> Placement | None:
        """The place that the policy likes best, or None where the pod fits nowhere. Changes nothing."""
        scores = self.scores(shape)
        best = int(scores.argmax()) if len(scores) else -1
        if best < 0 or scores[best] == -np.inf:
            return None
        return Placement(best, self.scorer.cards(self.fleet, shape, best) if shape.cards else ())

    def place(self, shape: Shape) -> Placement | None:
        """`find`, and take it."""
        place = self.find(shape)
        if place is not None:
            self.fleet.take(shape, place)
        return place
