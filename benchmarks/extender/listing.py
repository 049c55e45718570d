"""The order in which kube-scheduler names nodes to an extender's filter: partly its own order, never twice the same.

Its threads take chunks of the nodes, one after the other, and append each node that passes the filters to one list as
soon as they are done with it. Source: findNodesThatPassFilters in pkg/scheduler/schedule_one.go and chunkSizeFor in
pkg/scheduler/framework/parallelize of Kubernetes 1.36. As all nodes are to be found, they are always begun with the
first. What prioritize asks about is in the order of the filter's answer.
"""

import heapq
import math
from typing import Final

import numpy as np

THREADS: Final = 16


class Listing:
    """Makes such orders, drawn with one seed."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._chunk = max(1, min(math.isqrt(len(names)), len(names) // THREADS + 1))
        self._draw = np.random.default_rng(1)

    def next(self) -> list[str]:
        """Return all names, in a new order."""
        count = len(self._names)
        seconds = self._draw.exponential(size=count)
        done = np.empty(count)
        free = [0.0] * THREADS
        for start in range(0, count, self._chunk):
            chunk = slice(start, start + self._chunk)
            done[chunk] = heapq.heappop(free) + seconds[chunk].cumsum()
            heapq.heappush(free, float(done[chunk][-1]))
        return [self._names[at] for at in done.argsort().tolist()]
