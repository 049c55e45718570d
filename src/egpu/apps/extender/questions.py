"""What kube-scheduler asks about a pod. Its lists of nodes are recognised by their bytes.

kube-scheduler names every node that a pod may go to, with every question: at thousands of nodes, reading the names and
looking each of them up costs more than the answer. Often it is a list that was sent before, byte for byte.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from egpu.api.extender import ExtenderQuestion
from egpu.api.kubernetes import Pod
from egpu.core.arrays import BoolArray
from egpu.core.placement.node_names import NodeNames
from egpu.errors import InvalidInput

LISTS_LIMIT: Final = 16
"""Lists of nodes that are recognised; 15,000 names take 3 MB, text and strings."""


class _Items(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _FullNodes(msgspec.Struct):
    nodes: _Items = msgspec.field(name="Nodes")


@dataclass(frozen=True)
class Question:
    """A pod, and the nodes that it is about. `full_nodes`: those as they were sent, for a caller that sends whole nodes
    and wants those that fit back, unshortened."""

    pod: Pod
    nodes: NodeNames
    full_nodes: Sequence[msgspec.Raw] | None = None


class Questions:
    """Reads bodies of filter and prioritize."""

    def __init__(self) -> None:
        self._asked = msgspec.json.Decoder(ExtenderQuestion)
        self._names = msgspec.json.Decoder(list[str])
        self._lists: OrderedDict[bytes, NodeNames] = OrderedDict()

    def read(self, body: bytes) -> Question:
        """Raises InvalidInput."""
        try:
            asked = self._asked.decode(body)
            if asked.nodes is not None:
                full = msgspec.json.decode(body, type=_FullNodes).nodes.items or []
                return Question(asked.pod, NodeNames([node.name for node in asked.nodes.items or []]), full)
            return Question(asked.pod, self._known(bytes(asked.node_names)))
        except msgspec.MsgspecError as error:
            raise InvalidInput("body", f"not ExtenderArgs: {error}") from error

    def expect(self, nodes: NodeNames, which: BoolArray) -> bytes:
        """Those of `nodes` for which `which`, of shape (nodes,), is true, as JSON; they will be asked about next."""
        part = nodes.subset(which)
        text = b"[%b]" % b",".join(part.quoted.texts)
        self._keep(text, part)
        return text

    def _known(self, text: bytes) -> NodeNames:
        found = self._lists.get(text)
        if found is None:
            try:
                found = NodeNames(() if text == b"null" else self._names.decode(text))
            except msgspec.MsgspecError as error:
                raise InvalidInput("body", f"not ExtenderArgs: NodeNames: {error}") from error
        self._keep(text, found)
        return found

    def _keep(self, text: bytes, nodes: NodeNames) -> None:
        self._lists[text] = nodes
        self._lists.move_to_end(text)
        if len(self._lists) > LISTS_LIMIT:
            self._lists.popitem(last=False)
