"""Lists of node names in JSON, as numbers.

A known name keeps its number, and a list of known names is read and written without a string per name. Any other list
is read as normal JSON, and its names are known from then on."""

from collections.abc import Sequence
from typing import Final

import msgspec

from egpu.adapters.name_table import NameTable
from egpu.core.arrays import IntArray
from egpu.core.placement.node_names import KnownNodes, NodeNames
from egpu_base.errors import InvalidInput

NAMES_LIMIT: Final = 32_768
"""Most names known at once, unless one request has more than half as many."""
MAX_NAME: Final = 253
"""Longest node name, in characters: Kubernetes allows no more."""


class NameLists:
    """Reads and writes lists. A known name keeps its number."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(list[str])
        self._forget()

    def _forget(self) -> None:
        self._known = KnownNodes()
        self._table = NameTable()
        """The same names under the same numbers, in native code."""

    def named(self, names: Sequence[str]) -> NodeNames:
        """Return the numbers of these names. Raises InvalidInput for a name that no node can have."""
        if any(len(name) > MAX_NAME for name in names):
            raise InvalidInput("NodeNames", f"a node name is longer than {MAX_NAME} characters")
        if len(self._known) > max(NAMES_LIMIT, 2 * len(names)):
            self._forget()
        found = NodeNames(names, self._known)
        for name in self._known.names[len(self._table) :]:
            self._table.add(msgspec.json.encode(name))
        return found

    def read(self, text: bytes) -> NodeNames:
        """Return the nodes of a JSON list. Raises msgspec.MsgspecError for anything but a list of strings, and
        InvalidInput as `named` does."""
        numbers = self._table.read(text)
        if numbers is None:
            return self.named(self._decoder.decode(text))
        return NodeNames.numbered(numbers, self._known)

    def write(self, nodes: NodeNames) -> bytes:
        """Return a JSON list in Go's format."""
        return b"[%b]" % self.each(nodes)

    def each(self, nodes: NodeNames, after: bytes = b"") -> bytes:
        """Return each name as JSON followed by `after`, separated by commas."""
        return self._table.write(self._ours(nodes).numbers, after)

    def scored(self, nodes: NodeNames, scores: IntArray, before: bytes, between: bytes, after: bytes) -> bytes:
        """Return each name as JSON with its score, shape (nodes,), and the text around both, separated by commas."""
        return self._table.write_scored(self._ours(nodes).numbers, scores, before, between, after)

    def _ours(self, nodes: NodeNames) -> NodeNames:
        return nodes if nodes.known is self._known else self.named(nodes)
