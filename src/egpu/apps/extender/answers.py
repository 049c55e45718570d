"""Answers about thousands of nodes, written at once: a struct for each of them costs more than all that was decided."""

from collections.abc import Sequence

import msgspec
import numpy as np

from egpu.api.extender import in_words
from egpu.apps.extender.name_lists import NameLists
from egpu.apps.extender.placing import Refused
from egpu.core.arrays import IntArray
from egpu.core.placement.node_names import NodeNames


def reasons(lists: NameLists, nodes: NodeNames, refused: Sequence[Refused], *, resolvable: bool) -> bytes:
    """An object with the reason of each refused node whose refusal is, or is not, resolvable."""
    parts = [
        lists.each(nodes.subset(one.which), b":" + msgspec.json.encode(in_words(one.reason)))
        for one in refused
        if one.resolvable == resolvable
    ]
    return b"{%b}" % b",".join(filter(None, parts))


def priorities(lists: NameLists, nodes: NodeNames, scores: IntArray) -> bytes:
    """A HostPriorityList. `scores` from 0 to MAX_SCORE, of shape (nodes,).

    Beside others, what has 0 is left out: that is what kube-scheduler takes for the score of a node that is not there.
    Where all have 0, all are there, for it puts equals in a random order only as an extender scores them. Source:
    prioritizeNodes in pkg/scheduler/schedule_one.go of Kubernetes 1.36.
    """
    rated = scores > 0 if scores.any() else np.ones(len(nodes), dtype=np.bool_)
    return b"[%b]" % lists.scored(nodes.subset(rated), scores[rated], b'{"Host":', b',"Score":', b"}")
