"""Which rows of some arrays changed, and when: what is computed from rows is computed again for those alone."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

import numpy as np

from egpu.core.arrays import BoolArray, IntArray

_RECENT: Final = 128
"""Latest changes that are kept as a list: a reader that is further behind looks through all rows' versions."""
QUESTIONS_LIMIT: Final = 512
"""Questions whose answers are kept, a byte a row each; the one longest unasked is forgotten first."""


class Changes:
    """`version` grows with every change of any row; `len` is the number of rows."""

    def __init__(self, rows: int = 0) -> None:
        self.version = 0
        self._changed_at: IntArray = np.zeros(rows, dtype=np.int64)
        self._recent: IntArray = np.zeros(_RECENT, dtype=np.int64)
        """The latest changed rows, each at its version modulo the length."""

    def __len__(self) -> int:
        return len(self._changed_at)

    def grow(self, rows: int) -> None:
        """There are so many rows now; the new ones have never changed."""
        self._changed_at = np.pad(self._changed_at, (0, rows - len(self)))

    def note(self, row: int) -> None:
        """The row changed."""
        self._recent[self.version % _RECENT] = row
        self.version += 1
        self._changed_at[row] = self.version

    def since(self, version: int) -> IntArray:
        """Rows that changed after `version`, in no promised order, perhaps repeated. Valid until the next change."""
        start, end = version % _RECENT, self.version % _RECENT
        if self.version - version < _RECENT and start <= end:
            return self._recent[start:end]
        return (self._changed_at > version).nonzero()[0]


@dataclass
class _Answers:
    version: int
    by_row: BoolArray


class Verdicts:
    """Yes or no for every row to questions that come again and again; each is asked anew only where rows changed."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._known: OrderedDict[Hashable, _Answers] = OrderedDict()

    def of(self, question: Hashable, answer: Callable[[IntArray], BoolArray]) -> BoolArray:
        """The answer for every row, shape (rows,). Not a copy: valid until the next question. `answer` says it for some
        rows, from nothing but what `Changes` is told of."""
        changes = self._changes
        known = self._known.get(question)
        if known is None or len(known.by_row) != len(changes):
            known = self._known[question] = _Answers(changes.version, answer(np.arange(len(changes))))
            if len(self._known) > QUESTIONS_LIMIT:
                self._known.popitem(last=False)
        elif known.version != changes.version:
            rows = changes.since(known.version)
            known.by_row[rows] = answer(rows)
            known.version = changes.version
        self._known.move_to_end(question)
        return known.by_row
