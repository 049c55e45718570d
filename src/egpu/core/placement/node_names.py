"""The nodes that somebody asks about: kube-scheduler names all of them with every pod, in ever another order.

Its threads append the nodes that pass its own filters as they come to them. So it is not lists that are known again but
names: each has a number, a list of names is an array of numbers, and what is known of nodes is looked up by array.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import compress, repeat
from typing import Final, overload

import numpy as np

from egpu.core.arrays import BoolArray, IntArray

Found = tuple[IntArray, IntArray]
"""Rows of the nodes that have one, and their places among all that were named."""
_NONE: Final[IntArray] = np.zeros(0, dtype=np.int64)


class KnownNodes:
    """Names by number: each gets the next one when it is first asked about, and keeps it."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._rows = _NONE
        self._version = -1

    def __len__(self) -> int:
        return len(self.names)

    def number(self, name: str) -> int:
        """-1 for a name that nobody has asked about."""
        return self._numbers.get(name, -1)

    def numbers(self, names: Sequence[str]) -> IntArray:
        """The number of each, shape (names,); new ones for new names."""
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
        """By number what `look_up` says of the name, asked again when `version` is another."""
        if self._version != version:
            self._rows, self._version = look_up(self.names), version
        elif len(self._rows) < len(self.names):
            self._rows = np.append(self._rows, look_up(self.names[len(self._rows) :]))
        return self._rows


class NodeNames(Sequence[str]):
    """Names of nodes, as numbers. It is what a ledger takes wherever it takes a list of names."""

    def __init__(self, names: Sequence[str], known: KnownNodes | None = None) -> None:
        """`known`: what earlier lists named."""
        self.known = KnownNodes() if known is None else known
        self.numbers = self.known.numbers(names)
        self._found: Found | None = None
        self._version = -1

    @classmethod
    def numbered(cls, numbers: IntArray, known: KnownNodes) -> "NodeNames":
        """Of these numbers."""
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
        """Who has a row, by `look_up`: the row of each of some names, -1 for none. Asked again only when `version` is
        another."""
        if self._found is None or self._version != version:
            rows = self.known.rows(version, look_up).take(self.numbers)
            places = (rows >= 0).nonzero()[0]
            self._found, self._version = (rows if len(places) == len(rows) else rows.take(places), places), version
        return self._found

    def subset(self, which: BoolArray) -> "NodeNames":
        """Those for which `which`, of shape (nodes,), is true."""
        if which.all():
            return self
        return NodeNames.numbered(self.numbers[which], self.known)


def chosen(nodes: Sequence[str], which: BoolArray) -> tuple[str, ...]:
    """Those of `nodes` for which `which`, of shape (nodes,), is true, in their order."""
    names = nodes.names if isinstance(nodes, NodeNames) else nodes
    if which.all():
        return tuple(names)
    return tuple(compress(names, which.tolist())) if which.any() else ()
