"""Answers about thousands of nodes, written as bytes: a struct per node would cost more than the whole decision."""

from collections.abc import Sequence

import msgspec
import numpy as np

from egpu.apps.extender.name_lists import NameLists
from egpu.apps.extender.placing import Refused
from egpu.core.arrays import IntArray
from egpu.core.placement.node_names import NodeNames
from egpu_base.api.extender import in_words


def reasons(lists: NameLists, nodes: NodeNames, refused: Sequence[Refused], *, resolvable: bool) -> bytes:
    """Return an object with the reason of each refused node whose refusal is, or is not, resolvable."""
    parts = [
        lists.each(nodes.subset(one.which), b":" + msgspec.json.encode(in_words(one.reason)))
        for one in refused
        if one.resolvable == resolvable
    ]
    return b"{%b}" % b",".join(filter(None, parts))


def priorities(lists: NameLists, nodes: NodeNames, scores: IntArray) -> bytes:
    """Return a HostPriorityList. `scores` range from 0 to MAX_SCORE, shape (nodes,).

    Nodes with score 0 are left out, because kube-scheduler takes 0 for a missing node. If all have 0, all are listed:
    kube-scheduler puts equal nodes in random order only if an extender scores them. Source: prioritizeNodes in
    pkg/scheduler/schedule_one.go of Kubernetes 1.36."""
    rated = scores > 0 if scores.any() else np.ones(len(nodes), dtype=np.bool_)
    return b"[%b]" % lists.scored(nodes.subset(rated), scores[rated], b'{"Host":', b',"Score":', b"}")
