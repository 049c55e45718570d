"""Which nodes a pod was told that it may go to: a bind to any other is not kube-scheduler's.

A set of nodes is kept as bits, for there may be thousands of pods and of nodes. What is forgotten (with a restart, with
time, or because there was too much of it) is asked again: the bind fails, and kube-scheduler begins with the filter.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from egpu.core.arrays import BoolArray
from egpu.core.placement.node_names import KnownNodes, NodeNames
from egpu.errors import Conflict

REMEMBER_SECONDS = 900.0
"""As long as the longest wait between filter and bind that kube-scheduler knows (a plugin's permit: 15 minutes)."""
MAX_PODS = 8192
"""On 32,768 nodes they take 32 MiB."""


@dataclass(frozen=True)
class _Answer:
    bits: bytes
    since: float

    def allows(self, number: int) -> bool:
        byte, bit = divmod(number, 8)
        return 0 <= byte < len(self.bits) and bool(self.bits[byte] << bit & 0x80)


class Filtered:
    """The newest answer to each pod, by uid."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known = KnownNodes()
        self._answers: OrderedDict[str, _Answer] = OrderedDict()

    def note(self, uid: str, nodes: NodeNames, fits: BoolArray) -> None:
        """The pod may go to those of `nodes` for which `fits`, shape (nodes,), is true, and to no others."""
        if nodes.known is not self._known:  # numbers mean others now
            self._known = nodes.known
            self._answers.clear()
        chosen = np.zeros(len(self._known), dtype=np.bool_)
        chosen[nodes.numbers[fits]] = True
        self._answers[uid] = _Answer(np.packbits(chosen).tobytes(), self._clock())
        self._answers.move_to_end(uid)
        while len(self._answers) > MAX_PODS:
            self._answers.popitem(last=False)

    def check(self, uid: str, node: str) -> None:
        """Raises Conflict where the pod was not told that it may go there: it must be filtered again."""
        answer = self._answers.get(uid)
        if answer is None or self._clock() - answer.since > REMEMBER_SECONDS:
            raise Conflict(f"pod with uid {uid} has not been filtered here, or too long ago; schedule it again")
        if not answer.allows(self._known.number(node)):
            raise Conflict(f"the filter did not let pod with uid {uid} go to {node}; schedule it again")
