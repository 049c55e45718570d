"""Answers about thousands of nodes, put together from their names as JSON: a struct for each of them costs more than
all that was decided."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from egpu.api.extender import in_words
from egpu.apps.extender.placing import MAX_SCORE, Refused
from egpu.core.arrays import IntArray
from egpu.core.placement.node_names import NodeNames

_BEFORE: Final = b'[{"Host":'
_SCORE: Final = b',"Score":'
_BETWEEN: Final = _SCORE + b'0},{"Host":'
_AFTER: Final = _SCORE + b"0}]"
_MARK: Final = b"\x01"
"""Stands for the highest score, which has two digits. No JSON has such a letter."""
_DIGITS: Final = np.frombuffer(b"0123456789" + _MARK, dtype=np.uint8)
"""By score."""


def reasons(nodes: NodeNames, refused: Sequence[Refused], *, resolvable: bool) -> bytes:
    """An object with the reason of each refused node whose refusal is, or is not, resolvable."""
    parts: list[bytes] = []
    for one in refused:
        places: list[int] = one.which.nonzero()[0].tolist()
        if places and one.resolvable == resolvable:
            reason = b":" + msgspec.json.encode(in_words(one.reason))
            names = map(nodes.quoted.texts.__getitem__, places)
            parts.append((reason + b",").join(names) + reason)
    return b"{%b}" % b",".join(parts)


def priorities(nodes: NodeNames, scores: IntArray) -> bytes:
    """A HostPriorityList. `scores` from 0 to MAX_SCORE, of shape (nodes,)."""
    if not len(nodes):
        return b"[]"
    texts, lengths = nodes.quoted
    written = bytearray(_BEFORE + _BETWEEN.join(texts) + _AFTER)
    ends = len(_BEFORE) + lengths.cumsum() + len(_BETWEEN) * np.arange(len(nodes))
    np.frombuffer(written, dtype=np.uint8)[ends + len(_SCORE)] = _DIGITS.take(scores)
    return bytes(written.replace(_MARK, b"%d" % MAX_SCORE))
