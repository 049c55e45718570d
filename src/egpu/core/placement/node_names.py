"""The nodes that somebody asks about, looked up once: kube-scheduler names all of them with every pod."""

from collections.abc import Callable, Sequence
from itertools import compress
from typing import overload

from egpu.core.arrays import BoolArray, IntArray

Found = tuple[IntArray, IntArray]
"""Rows of the nodes that have one, and their places among all that were named."""


class NodeNames(Sequence[str]):
    """Names of nodes that will be asked about again. It is what a ledger takes wherever it takes a list of names."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._found: Found | None = None
        self._version = -1

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return self.names[index]

    def found(self, version: int, look_up: Callable[[Sequence[str]], Found]) -> Found:
        """What `look_up` says of the names, asked again only when `version` is another."""
        if self._found is None or self._version != version:
            self._found, self._version = look_up(self.names), version
        return self._found

    def subset(self, which: BoolArray) -> "NodeNames":
        """Those for which `which`, of shape (nodes,), is true; what is known of them is known of it."""
        part = NodeNames(chosen(self, which))
        if self._found is not None:
            rows, places = self._found
            kept = which[places]
            part._found = rows[kept], which.cumsum()[places[kept]] - 1
            part._version = self._version
        return part


def chosen(nodes: Sequence[str], which: BoolArray) -> tuple[str, ...]:
    """Those of `nodes` for which `which`, of shape (nodes,), is true, in their order."""
    names = nodes.names if isinstance(nodes, NodeNames) else nodes
    if which.all():
        return tuple(names)
    return tuple(compress(names, which.tolist())) if which.any() else ()
