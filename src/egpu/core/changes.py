"""Changed rows of arrays, so that values computed from rows are only computed again for those."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

import numpy as np

from egpu.core.arrays import BoolArray, IntArray

_RECENT: Final = 128
"""The latest changes, kept as a list. A reader that is further behind scans the versions of all rows."""
QUESTIONS_LIMIT: Final = 512
"""Cached questions, one byte per row each; the least recently used is forgotten first."""


class Changes:
    """The versions of rows. `version` grows with every change; `len` is the number of rows."""

    def __init__(self, rows: int = 0) -> None:
        self.version = 0
        self._changed_at: IntArray = np.zeros(rows, dtype=np.int64)
        self._recent: IntArray = np.zeros(_RECENT, dtype=np.int64)
        """The latest changed rows, each at its version modulo the length."""

    def __len__(self) -> int:
        return len(self._changed_at)

    def grow(self, rows: int) -> None:
        """Add rows, up to this number, which have never changed."""
        self._changed_at = np.pad(self._changed_at, (0, rows - len(self)))

    def note(self, row: int) -> None:
        """Record a change of the row."""
        self._recent[self.version % _RECENT] = row
        self.version += 1
        self._changed_at[row] = self.version

    def since(self, version: int) -> IntArray:
        """Return the rows that changed after `version`, unordered, maybe repeated. Valid until the next change."""
        start, end = version % _RECENT, self.version % _RECENT
        if self.version - version < _RECENT and start <= end:
            return self._recent[start:end]
        return (self._changed_at > version).nonzero()[0]


@dataclass
class _Answers:
    version: int
    by_row: BoolArray


class Verdicts:
    """Cached yes-or-no answers for every row; a question is asked again only for rows that changed."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._known: OrderedDict[Hashable, _Answers] = OrderedDict()

    def of(self, question: Hashable, answer: Callable[[IntArray], BoolArray]) -> BoolArray:
        """Return the answer for every row, shape (rows,). Not a copy: valid until the next question. `answer` computes
        it for some rows, only from data whose changes `Changes` records."""
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
