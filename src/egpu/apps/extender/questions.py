"""Reads kube-scheduler's requests: a pod, and the nodes that it may go to.

kube-scheduler sends the names of all possible nodes with every request. A prioritize request names the nodes that were
just filtered, in the filter's own format: such a list is recognised by its bytes."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from egpu.apps.extender.name_lists import NameLists
from egpu.core.placement.node_names import NodeNames
from egpu_base.api.extender import ExtenderQuestion
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import InvalidInput

LISTS_LIMIT: Final = 16
"""Lists of nodes that are recognised; 15,000 names take half a MB. Lists that differ in a letter are told apart at
once."""

_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError)
"""Errors of msgspec for unreadable input."""


class _Items(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _FullNodes(msgspec.Struct):
    nodes: _Items = msgspec.field(name="Nodes")


@dataclass(frozen=True)
class Question:
    """A pod, and the nodes of the request. `full_nodes`: the nodes as sent, for a caller that sends whole Node objects
    and wants the fitting ones back in full."""

    pod: Pod
    nodes: NodeNames
    full_nodes: Sequence[msgspec.Raw] | None = None


class Questions:
    """Reads bodies of filter and prioritize."""

    def __init__(self, lists: NameLists) -> None:
        self._asked = msgspec.json.Decoder(ExtenderQuestion)
        self._lists = lists
        self._expected: deque[tuple[bytes, NodeNames]] = deque(maxlen=LISTS_LIMIT)
        """The newest list comes first."""

    def read(self, body: bytes) -> Question:
        """Return the request. Raises InvalidInput."""
        try:
            asked = self._asked.decode(body)
            if asked.nodes is not None:
                full = msgspec.json.decode(body, type=_FullNodes).nodes.items or []
                return Question(asked.pod, self._lists.named([node.name for node in asked.nodes.items or []]), full)
            return Question(asked.pod, self._nodes(bytes(asked.node_names)))
        except _UNREADABLE as error:
            raise InvalidInput("body", f"not ExtenderArgs: {error}") from error

    def expect(self, text: bytes, nodes: NodeNames) -> None:
        """Expect a later request about `nodes`, in these words."""
        self._expected.appendleft((text, nodes))

    def _nodes(self, text: bytes) -> NodeNames:
        for expected, nodes in self._expected:
            if expected == text:
                return nodes
        try:
            found = self._lists.read(b"[]" if text == b"null" else text)
        except _UNREADABLE as error:
            raise InvalidInput("body", f"not ExtenderArgs: NodeNames: {error}") from error
        self.expect(text, found)
        return found
