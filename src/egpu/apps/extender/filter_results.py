"""Remembers the nodes that the filter allowed for a pod. A bind to another node does not come from kube-scheduler.

A set of nodes is a bit mask, because there may be thousands of pods and nodes. An answer may be forgotten after a
restart, with time, or when there are too many. The bind then fails, and kube-scheduler filters again."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from egpu.core.arrays import BoolArray
from egpu.core.placement.node_names import KnownNodes, NodeNames
from egpu_base.errors import Conflict

REMEMBER_SECONDS = 900.0
"""The longest wait between filter and bind in kube-scheduler: 15 minutes, for a plugin's permit."""
MAX_PODS = 8192
"""Most pods that are remembered: 32 MiB with 32,768 nodes."""


@dataclass(frozen=True)
class _Answer:
    bits: bytes
    since: float

    def allows(self, number: int) -> bool:
        byte, bit = divmod(number, 8)
        return 0 <= byte < len(self.bits) and bool(self.bits[byte] << bit & 0x80)


class FilterResults:
    """The newest answer for each pod, by uid."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known = KnownNodes()
        self._answers: OrderedDict[str, _Answer] = OrderedDict()

    def note(self, uid: str, nodes: NodeNames, fits: BoolArray) -> None:
        """Remember that the pod may go to the `nodes` for which `fits`, shape (nodes,), is true."""
        if nodes.known is not self._known:  # node numbers have a new meaning
            self._known = nodes.known
            self._answers.clear()
        chosen = np.zeros(len(self._known), dtype=np.bool_)
        chosen[nodes.numbers[fits]] = True
        self._answers[uid] = _Answer(np.packbits(chosen).tobytes(), self._clock())
        self._answers.move_to_end(uid)
        while len(self._answers) > MAX_PODS:
            self._answers.popitem(last=False)

    def named_one(self, uid: str) -> bool:
        """Return whether the latest answer for this pod named a single node."""
        answer = self._answers.get(uid)
        return answer is not None and int.from_bytes(answer.bits).bit_count() == 1

    def check(self, uid: str, node: str) -> None:
        """Raise Conflict if the filter did not allow this node: the pod must be filtered again."""
        answer = self._answers.get(uid)
        if answer is None or self._clock() - answer.since > REMEMBER_SECONDS:
            raise Conflict(f"pod with uid {uid} was not filtered by this extender, or too long ago; schedule it again")
        if not answer.allows(self._known.number(node)):
            raise Conflict(f"the filter refused node {node} for pod with uid {uid}; schedule it again")
