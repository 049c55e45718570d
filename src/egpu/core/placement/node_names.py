"""The nodes of a question: kube-scheduler names all of them with every pod, in changing order.

Its threads append nodes as they pass its own filters, so whole lists do not repeat, but names do. Each name has a
number, a list of names is an array of numbers, and data about nodes is looked up by array.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import compress, repeat
from typing import Final, overload

import numpy as np

from egpu.core.arrays import BoolArray, IntArray

Found = tuple[IntArray, IntArray]
"""Rows of the nodes that have one, and their places in the list of names."""
_NONE: Final[IntArray] = np.zeros(0, dtype=np.int64)


class KnownNodes:
    """Names by number: each gets the next one at its first use, and keeps it."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._rows = _NONE
        self._version = -1

    def __len__(self) -> int:
        return len(self.names)

    def number(self, name: str) -> int:
        """Return the number of a name; -1 for an unknown name."""
        return self._numbers.get(name, -1)

    def numbers(self, names: Sequence[str]) -> IntArray:
        """Return the number of each name, shape (names,); new names get new numbers."""
        found = self._look_up(names)
        if len(found) and found.min() < 0:
            for name in names:
                if name not in self._numbers:
                    self._numbers[name] = len(self.names)
                    self.names.append(name)
            found = self._look_up(names)
        return found

    def _look_up(self, names: Sequence[str]) -> IntArray:
        return np.fromiter(map(self._numbers.get, names, repeat(-1)), dtype=np.int64, count=len(names))

    def rows(self, version: int, look_up: Callable[[Sequence[str]], IntArray]) -> IntArray:
        """Return, by number, the result of `look_up` for each name; computed again for a new `version`."""
        if self._version != version:
            self._rows, self._version = look_up(self.names), version
        elif len(self._rows) < len(self.names):
            self._rows = np.append(self._rows, look_up(self.names[len(self._rows) :]))
        return self._rows


class NodeNames(Sequence[str]):
    """Names of nodes, as numbers. A ledger takes it wherever it takes a list of names."""

    def __init__(self, names: Sequence[str], known: KnownNodes | None = None) -> None:
        """Look up the names. `known`: the names of earlier lists."""
        self.known = KnownNodes() if known is None else known
        self.numbers = self.known.numbers(names)
        self._found: Found | None = None
        self._version = -1

    @classmethod
    def numbered(cls, numbers: IntArray, known: KnownNodes) -> "NodeNames":
        """Return the names with these numbers."""
        made = cls((), known)
        made.numbers = numbers
        return made

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(map(self.known.names.__getitem__, self.numbers.tolist()))

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return self.names[index] if isinstance(index, slice) else self.known.names[int(self.numbers[index])]

    def found(self, version: int, look_up: Callable[[Sequence[str]], IntArray]) -> Found:
        """Return the names with a row. `look_up` returns each name's row, or -1; called once per `version`."""
        if self._found is None or self._version != version:
            rows = self.known.rows(version, look_up).take(self.numbers)
            places = (rows >= 0).nonzero()[0]
            self._found, self._version = (rows if len(places) == len(rows) else rows.take(places), places), version
        return self._found

    def subset(self, which: BoolArray) -> "NodeNames":
        """Return the names for which `which`, of shape (nodes,), is true."""
        if which.all():
            return self
        return NodeNames.numbered(self.numbers[which], self.known)


def chosen(nodes: Sequence[str], which: BoolArray) -> tuple[str, ...]:
    """Return those of `nodes` for which `which`, of shape (nodes,), is true, in order."""
    names = nodes.names if isinstance(nodes, NodeNames) else nodes
    if which.all():
        return tuple(names)
    return tuple(compress(names, which.tolist())) if which.any() else ()
