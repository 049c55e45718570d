"""Answers about thousands of nodes, written by array: a struct for each of them costs more than all that was
decided."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from egpu.api.extender import in_words
from egpu.apps.extender.name_lists import ByteArray, NameLists, text_of
from egpu.apps.extender.placing import MAX_SCORE, Refused
from egpu.core.arrays import IntArray
from egpu.core.placement.node_names import NodeNames

_DIGITS: Final[ByteArray] = np.array([b"%d" % score for score in range(MAX_SCORE + 1)]).view(np.uint8).reshape(-1, 2)
"""By score."""


def reasons(lists: NameLists, nodes: NodeNames, refused: Sequence[Refused], *, resolvable: bool) -> bytes:
    """An object with the reason of each refused node whose refusal is, or is not, resolvable."""
    parts = [
        text_of(lists.rows(nodes.subset(one.which), b",", b":" + msgspec.json.encode(in_words(one.reason))))
        for one in refused
        if one.resolvable == resolvable
    ]
    return b"{%b}" % b"".join(parts)[1:]


def priorities(lists: NameLists, nodes: NodeNames, scores: IntArray) -> bytes:
    """A HostPriorityList. `scores` from 0 to MAX_SCORE, of shape (nodes,).

    Beside others, what has 0 is left out: that is what kube-scheduler takes for the score of a node that is not there.
    Where all have 0, all are there, for it puts equals in a random order only as an extender scores them. Source:
    prioritizeNodes in pkg/scheduler/schedule_one.go of Kubernetes 1.36.
    """
    rated = scores > 0 if scores.any() else np.ones(len(nodes), dtype=np.bool_)
    rows = lists.rows(nodes.subset(rated), b',{"Host":', b',"Score":\0\0}')
    rows[:, -3:-1] = _DIGITS.take(scores[rated], axis=0)
    return b"[%b]" % text_of(rows)[1:]
