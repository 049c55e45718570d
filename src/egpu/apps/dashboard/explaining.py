"""Why a pod waits, node by node, for pages that ask every two seconds: in a large cluster the answer takes a second."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from egpu.api.kubernetes import Pod
from egpu.core.explain import Explanation
from egpu.core.preemption.explaining import explain_with_preemption
from egpu.core.preemption.scene import Scene

REST: Final = 10.0
"""An answer is good for so many times as long as it took: a tenth of the time goes into answers at most."""
MAX_KEPT: Final = 64


class _Answer(NamedTuple):
    version: str
    until: float
    explanation: Explanation


class Explanations:
    """Kept for a while, those of the pods that were asked about last."""

    def __init__(self, scene: Callable[[], Scene], clock: Callable[[], float] = time.monotonic) -> None:
        self._scene = scene
        self._clock = clock
        self._kept: OrderedDict[str, _Answer] = OrderedDict()

    def of(self, pod: Pod) -> Explanation:
        """As it is, or was a moment ago; of a pod that has changed, as it is."""
        known, began = self._kept.pop(pod.uid, None), self._clock()
        if known is None or known.version != pod.metadata.resource_version or began >= known.until:
            explanation, ended = explain_with_preemption(pod, self._scene()), self._clock()
            known = _Answer(pod.metadata.resource_version, ended + REST * (ended - began), explanation)
        self._kept[pod.uid] = known
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return known.explanation
