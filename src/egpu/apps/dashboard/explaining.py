"""Why a pod waits, node by node, for pages that ask every two seconds: in a large cluster the answer takes a second."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from egpu.core.explain import Explanation
from egpu.core.preemption.explaining import explain_with_preemption
from egpu.core.preemption.scene import Scene
from egpu_base.api.kubernetes import Pod

REST: Final = 10.0
"""An answer is valid for this many times the time that it took: answers take at most a tenth of the time."""
MAX_KEPT: Final = 64


class _Answer(NamedTuple):
    version: str
    until: float
    explanation: Explanation


class Explanations:
    """Explanations of the pods that were requested last, cached for a while."""

    def __init__(self, scene: Callable[[], Scene], clock: Callable[[], float] = time.monotonic) -> None:
        self._scene = scene
        self._clock = clock
        self._kept: OrderedDict[str, _Answer] = OrderedDict()

    def of(self, pod: Pod) -> Explanation:
        """Return the explanation as of now or a moment ago; of a changed pod, as of now."""
        known, began = self._kept.pop(pod.uid, None), self._clock()
        if known is None or known.version != pod.metadata.resource_version or began >= known.until:
            explanation, ended = explain_with_preemption(pod, self._scene()), self._clock()
            known = _Answer(pod.metadata.resource_version, ended + REST * (ended - began), explanation)
        self._kept[pod.uid] = known
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return known.explanation
