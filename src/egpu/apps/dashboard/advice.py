"""Ways to recover what the bill reports as lost, for users who may see everything. Computed beside the answers."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from egpu.core.bill import Bill, Line, Remedy, bill_of, own_remedy, remedies
from egpu.core.placement.cache import SchedulerCache
from egpu.core.view import ClusterView
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import ElasticGPUError

ADVICE_SECONDS: Final = 60.0
"""Pause between two searches: searching for room is expensive, and losses take hours."""

log = structlog.get_logger(__name__)


class Advice:
    """Searches in `run`, but only while a user asks."""

    def __init__(self, cache: SchedulerCache, *, pods: Iterable[Pod], view: Callable[[], ClusterView]) -> None:
        self._cache = cache
        self._pods = pods
        self._view = view
        self._asked = asyncio.Event()
        self._rooms: Mapping[str, Remedy] = {}

    def remedy(self, line: Line) -> Remedy:
        """Return the cheapest remedy known by now; for a waiting pod it follows soon after the first request."""
        self._asked.set()
        found = self._rooms.get(line.pending.uid) if line.pending is not None else None
        return found or own_remedy(line)

    async def run(self) -> None:
        """Run forever. Other work runs between two pods: one search may take a large part of a second."""
        while True:
            await self._asked.wait()
            try:
                self._rooms = await self._look()
            except ElasticGPUError as error:  # it has changed since it was requested
                log.warning("search for room failed", reason=str(error))
            self._asked.clear()
            await asyncio.sleep(ADVICE_SECONDS)

    async def _look(self) -> Mapping[str, Remedy]:
        view, pods, found = self._view(), list(self._pods), dict[str, Remedy]()
        there = {pod.uid for pod in pods}
        lines = tuple(line for line in bill_of(view).lines if line.pending is None or line.pending.uid in there)
        nodes = [node.name for node in view.nodes]
        for line, remedy in zip(lines, remedies(Bill(lines), self._cache, pods, nodes), strict=True):
            if line.pending is not None:
                found[line.pending.uid] = remedy
                await asyncio.sleep(0)
        return found
