"""Lists of names of nodes in JSON, as numbers.

What was named keeps its number, and a list of such names alone is read and written without a string for each. Any other
list is read as any JSON is, and its names are known then.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from egpu.adapters.name_table import NameTable
from egpu.core.arrays import IntArray
from egpu.core.placement.node_names import KnownNodes, NodeNames
from egpu.errors import InvalidInput

NAMES_LIMIT: Final = 32_768
"""Names known at once, unless more than half as many are asked about."""
MAX_NAME: Final = 253
"""Characters of the name of a node: Kubernetes allows no more."""


class NameLists:
    """`read` and `write` lists; what was named keeps its number."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(list[str])
        self._forget()

    def _forget(self) -> None:
        self._known = KnownNodes()
        self._table = NameTable()
        """The same names, under the same numbers."""

    def named(self, names: Sequence[str]) -> NodeNames:
        """These. Raises InvalidInput for a name that no node can have."""
        if any(len(name) > MAX_NAME for name in names):
            raise InvalidInput("NodeNames", f"a name is longer than {MAX_NAME} characters")
        if len(self._known) > max(NAMES_LIMIT, 2 * len(names)):
            self._forget()
        found = NodeNames(names, self._known)
        for name in self._known.names[len(self._table) :]:
            self._table.add(msgspec.json.encode(name))
        return found

    def read(self, text: bytes) -> NodeNames:
        """Those of a list, which is JSON. Raises msgspec.MsgspecError where it is not one of strings, and as
        `named` does."""
        numbers = self._table.read(text)
        if numbers is None:
            return self.named(self._decoder.decode(text))
        return NodeNames.numbered(numbers, self._known)

    def write(self, nodes: NodeNames) -> bytes:
        """As a JSON list, as Go writes it."""
        return b"[%b]" % self.each(nodes)

    def each(self, nodes: NodeNames, after: bytes = b"") -> bytes:
        """Each name as JSON, with `after` behind it, and commas between."""
        return self._table.write(self._ours(nodes).numbers, after)

    def scored(self, nodes: NodeNames, scores: IntArray, before: bytes, between: bytes, after: bytes) -> bytes:
        """Each name as JSON with its score, of shape (nodes,), and what stands around them, with commas between."""
        return self._table.write_scored(self._ours(nodes).numbers, scores, before, between, after)

    def _ours(self, nodes: NodeNames) -> NodeNames:
        return nodes if nodes.known is self._known else self.named(nodes)
