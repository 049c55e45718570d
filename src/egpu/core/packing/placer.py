"""The best place for a pod, from score rows that are refreshed only where something changed.

One row of scores per pod shape; when a shape is asked for again, only the nodes that changed since are scored, and one
argmax answers. So a decision costs the changes since the shape's last turn, not the size of the cluster.
"""

from collections import OrderedDict
from typing import Final, Protocol, runtime_checkable

import numpy as np

from egpu.core.arrays import BoolArray, FloatArray, IntArray
from egpu.core.packing.fleet import Fleet, Placement
from egpu.core.packing.shapes import Shape

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


def fits(fleet: Fleet, shape: Shape, rows: IntArray) -> BoolArray:
    """Which of `rows` can take the pod now, models aside."""
    ok = (fleet.cpu.take(rows) >= shape.cpu_milli) & (fleet.ram.take(rows) >= shape.ram_mib)
    if not shape.cards:
        return ok
    if shape.whole:
        ok &= fleet.full.take(rows) >= shape.cards
        return ok & (fleet.card_memory_total.take(rows) >= shape.card_memory_mib) if shape.card_memory_mib else ok
    if shape.cards == 1 and not shape.card_memory_mib:
        return ok & (fleet.largest.take(rows) >= shape.core_milli)
    eligible = fleet.lanes.take(rows, axis=1) >= shape.core_milli
    if shape.card_memory_mib:
        eligible &= fleet.memory_lanes.take(rows, axis=1) >= shape.card_memory_mib
    return ok & (eligible.sum(axis=0) >= shape.cards)


@runtime_checkable
class Reserving(Scorer, Protocol):
    """A policy that also keeps something back whose worth depends on the whole cluster.

    A score holds until its node changes; what is scarce changes with every placement anywhere. So a row carries, per
    node, a mark of *what* would be used up there, and the price of each mark is looked up when the decision is made.
    """

    def scored(self, fleet: Fleet, shape: Shape, rows: IntArray) -> tuple[FloatArray, IntArray]:
        """`scores`, and what the pod would use up on each row, as an index into `charges`; 0 is nothing."""
        ...

    def attend(self, fleet: Fleet) -> None:
        """Look at what changed in the fleet, before a decision; `generation` may grow by it."""
        ...

    def charges(self, fleet: Fleet) -> FloatArray | None:
        """What each mark costs now, to be taken off the score; None when nothing costs anything."""
        ...


class _Row:
    __slots__ = ("allowed", "generation", "marks", "scores", "version")

    def __init__(self, allowed: BoolArray | None, count: int) -> None:
        self.allowed = allowed
        self.scores: FloatArray = np.full(count, -np.inf)
        self.marks: IntArray = np.zeros(count, dtype=np.int64)
        self.version = -1
        self.generation = -1


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
            row = self._rows[shape] = _Row(fleet.allowed(shape), len(fleet))
            if len(self._rows) > ROWS_LIMIT:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(shape)
        if row.version < fleet.version or row.generation != self.scorer.generation:
            anew = row.version < 0 or row.generation != self.scorer.generation
            rows = fleet.all_rows if anew else fleet.changed_since(row.version)
            ok = fits(fleet, shape, rows)
            if row.allowed is not None:
                ok &= row.allowed[rows]
            row.scores[rows] = -np.inf
            rows = rows[ok]
            if len(rows):
                if self._reserving is None:
                    row.scores[rows] = self.scorer.scores(fleet, shape, rows)
                else:
                    row.scores[rows], row.marks[rows] = self._reserving.scored(fleet, shape, rows)
            row.version, row.generation = fleet.version, self.scorer.generation
        charges = self._reserving.charges(fleet) if self._reserving is not None else None
        return row.scores if charges is None else row.scores - charges.take(row.marks)

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
