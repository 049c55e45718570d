"""Which nodes a pod was told that it may go to: a bind to any other is not kube-scheduler's.

A set of nodes is kept as bits, for there may be thousands of pods and of nodes. What is forgotten (with a restart, with
time, or because there was too much of it) is asked again: the bind fails, and kube-scheduler begins with the filter.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from egpu.core.arrays import BoolArray, IntArray
from egpu.core.placement.node_names import NodeNames
from egpu.errors import Conflict

REMEMBER_SECONDS = 900.0
"""As long as the longest wait between filter and bind that kube-scheduler knows (a plugin's permit: 15 minutes)."""
MAX_PODS = 8192
MAX_NODES = 32_768
"""Names of nodes known at once; 8,192 pods on so many take 32 MiB."""


@dataclass(frozen=True)
class _Answer:
    bits: bytes
    since: float


class Filtered:
    """The newest answer to each pod, by uid."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._numbers: dict[str, int] = {}
        self._numbered: WeakKeyDictionary[NodeNames, IntArray] = WeakKeyDictionary()
        """The numbers of a list's names, for lists come again."""
        self._answers: OrderedDict[str, _Answer] = OrderedDict()

    def note(self, uid: str, nodes: NodeNames, fits: BoolArray) -> None:
        """The pod may go to those of `nodes` for which `fits`, shape (nodes,), is true, and to no others."""
        numbers = self._number(nodes)[fits]
        chosen = np.zeros(len(self._numbers), dtype=np.bool_)
        chosen[numbers] = True
        self._answers[uid] = _Answer(np.packbits(chosen).tobytes(), self._clock())
        self._answers.move_to_end(uid)
        while len(self._answers) > MAX_PODS:
            self._answers.popitem(last=False)

    def check(self, uid: str, node: str) -> None:
        """Raises Conflict where the pod was not told that it may go there: it must be filtered again."""
        answer = self._answers.get(uid)
        if answer is None or self._clock() - answer.since > REMEMBER_SECONDS:
            raise Conflict(f"pod with uid {uid} has not been filtered here, or too long ago; schedule it again")
        byte, bit = divmod(self._numbers.get(node, MAX_NODES), 8)
        if byte >= len(answer.bits) or not answer.bits[byte] << bit & 0x80:
            raise Conflict(f"the filter did not let pod with uid {uid} go to {node}; schedule it again")

    def _number(self, nodes: NodeNames) -> IntArray:
        found = self._numbered.get(nodes)
        if found is None:
            if len(self._numbers) + len(nodes) > MAX_NODES and not self._numbers.keys() >= set(nodes.names):
                self._numbers.clear()
                self._numbered.clear()
                self._answers.clear()
            numbers = self._numbers
            listed = [numbers.setdefault(name, len(numbers)) for name in nodes.names]
            found = self._numbered[nodes] = np.array(listed, dtype=np.int64)
        return found
