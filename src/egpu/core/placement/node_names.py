"""The nodes that somebody asks about, looked up once: kube-scheduler names all of them with every pod."""

from collections.abc import Callable, Sequence
from itertools import compress
from typing import NamedTuple, overload

import msgspec
import numpy as np

from egpu.core.arrays import BoolArray, IntArray

Found = tuple[IntArray, IntArray]
"""Rows of the nodes that have one, and their places among all that were named."""


class Quoted(NamedTuple):
    """Names as JSON, each for itself, and their lengths, shape (nodes,): long answers are put together from them."""

    texts: tuple[bytes, ...]
    lengths: IntArray


class NodeNames(Sequence[str]):
    """Names of nodes that will be asked about again. It is what a ledger takes wherever it takes a list of names."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names: tuple[str, ...] | None = tuple(names)
        self._count = len(names)
        self._whole: tuple[NodeNames, BoolArray] | None = None
        """Of a subset, what it is of, and which of those."""
        self._quoted: Quoted | None = None
        self._found: Found | None = None
        self._version = -1

    @property
    def names(self) -> tuple[str, ...]:
        if self._names is None:
            assert self._whole is not None
            whole, which = self._whole
            self._names = tuple(compress(whole.names, which.tolist()))
        return self._names

    @property
    def quoted(self) -> Quoted:
        """Each of the names as JSON."""
        if self._quoted is None:
            if self._whole is not None:
                whole, which = self._whole
                texts, lengths = whole.quoted
                self._quoted = Quoted(tuple(compress(texts, which.tolist())), lengths[which])
            else:
                self._quoted = _quoted(self.names)
        return self._quoted

    def __len__(self) -> int:
        return self._count

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
        if which.all():
            return self
        part = NodeNames(())
        part._names, part._whole, part._count = None, self._whole_of(which), int(np.count_nonzero(which))
        if self._found is not None:
            rows, places = self._found
            kept = which[places]
            part._found = rows[kept], which.cumsum()[places[kept]] - 1
            part._version = self._version
        return part

    def _whole_of(self, which: BoolArray) -> "tuple[NodeNames, BoolArray]":
        """Of a subset of a subset too the whole list: so no list keeps a row of others."""
        if self._whole is None:
            return self, which
        whole, mine = self._whole
        both = mine.copy()
        both[mine] = which
        return whole, both


def _quoted(names: Sequence[str]) -> Quoted:
    texts = msgspec.json.encode(names)[1:-1].split(b",") if names else []
    if len(texts) != len(names):  # a comma, which no node has in its name
        texts = [msgspec.json.encode(name) for name in names]
    return Quoted(tuple(texts), np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)))


def chosen(nodes: Sequence[str], which: BoolArray) -> tuple[str, ...]:
    """Those of `nodes` for which `which`, of shape (nodes,), is true, in their order."""
    names = nodes.names if isinstance(nodes, NodeNames) else nodes
    if which.all():
        return tuple(names)
    return tuple(compress(names, which.tolist())) if which.any() else ()
