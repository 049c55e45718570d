"""A queue of keys to work on: no key twice, no key with two workers at once, failures are retried later.

The semantics are those of client-go's work queue, on which level-triggered controllers rely. A key that is added while
it waits stays one key. A key that is added while it is worked on waits until that work is done.
"""

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

BASE_DELAY_SECONDS = 0.05
MAX_DELAY_SECONDS = 30.0
MAX_KEYS = 100_000


class WorkQueueFullError(RuntimeError):
    """The queue has more distinct keys than any cluster that this program is made for."""


class WorkQueue(Generic[K]):
    """A queue of at most `max_keys` distinct keys, waiting and delayed together."""

    def __init__(self, *, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._ready: deque[K] = deque()
        self._waiting: set[K] = set()
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._order = itertools.count()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready) + len(self._due)

    def add(self, key: K) -> None:
        """Queue the key to be worked on now (once, however often it is added before that)."""
        self._due.pop(key, None)
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            if len(self) >= self._max_keys:
                raise WorkQueueFullError(f"{self._max_keys} keys are waiting")
            self._waiting.add(key)
            self._ready.append(key)
            self._wake.set()

    def add_after(self, key: K, delay_seconds: float) -> None:
        """Queue the key to be worked on after the delay, or earlier if something else asks for it."""
        if key in self._waiting:
            return
        at = asyncio.get_running_loop().time() + delay_seconds
        if key in self._due and self._due[key] <= at:
            return
        if len(self) >= self._max_keys:
            raise WorkQueueFullError(f"{self._max_keys} keys are waiting")
        self._due[key] = at
        heapq.heappush(self._later, (at, next(self._order), key))
        self._wake.set()

    def retry(self, key: K) -> float:
        """Queue the key again after failed work. Return the delay, which doubles with each failure."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(MAX_DELAY_SECONDS, BASE_DELAY_SECONDS * 2 ** min(failures, 20)) * random.uniform(0.75, 1.0)
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Reset the key's delay after successful work: its next failure starts from the shortest delay."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Return the next key. Call `done(key)` when its work is over, whatever the outcome."""
        while True:
            self._promote()
            if self._ready:
                key = self._ready.popleft()
                self._waiting.discard(key)
                self._working.add(key)
                return key
            self._wake.clear()
            due = self._later[0][0] if self._later else None
            try:
                # Not wait_for: before Python 3.12 it can swallow a cancellation that comes together with the wake-up.
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def done(self, key: K) -> None:
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _promote(self) -> None:
        """Move the delayed keys that are due; drop entries overtaken by `add` or an earlier delay."""
        now = asyncio.get_running_loop().time()
        while self._later and self._later[0][0] <= now:
            at, _, key = heapq.heappop(self._later)
            if self._due.get(key) == at:
                self.add(key)
