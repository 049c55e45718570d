"""Limit the lines of a log, of each kind and in all, so that strangers cannot fill it; report how many were dropped.

A kind is a logger and its message without the values. Each kind may come in a burst, and then at a limited rate: events
that happen up to a few hundred times are all logged, an endless series only now and then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

BURST: Final = 300
PER_SECOND: Final = 2.0
BURST_IN_ALL: Final = 3000
PER_SECOND_IN_ALL: Final = 50.0
MAX_KINDS: Final = 512
IDLE_SECONDS: Final = 30.0
"""A kind is forgotten after this time without a line. The log then reports how many of its lines were dropped."""
ALL_ELSE: Final = ("", "lines of many kinds")
"""The kind of all lines beyond MAX_KINDS kinds."""
MAX_KIND: Final = 120
"""Characters of the message that a report of dropped lines quotes."""

log = logging.getLogger(__name__)


@dataclass
class _Bucket:
    """The lines that may still pass, and the number of those dropped."""

    left: float
    at: float
    dropped: int = 0

    def take(self, now: float, *, burst: int, per_second: float) -> bool:
        self.left = min(burst, self.left + (now - self.at) * per_second)
        self.at = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


class RateLimit(logging.Filter):
    """Let lines pass, or drop them, by the rules above. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._all = _Bucket(BURST_IN_ALL, clock())
        self._kinds: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == __name__:
            return True  # about kinds, of which there are few
        with self._lock:
            passes, told = self._judge(record.name, _said(record), self._clock())
        for name, said, dropped in told:
            log.warning("%d lines were dropped: %s: %s", dropped, name, said)
        return passes

    def _judge(self, name: str, said: str, now: float) -> tuple[bool, list[tuple[str, str, int]]]:
        """Return whether the line may pass, and how many lines of which kinds were dropped."""
        told: list[tuple[str, str, int]] = []
        while self._kinds and now - self._kinds[oldest := next(iter(self._kinds))].at > IDLE_SECONDS:
            if dropped := self._kinds.pop(oldest).dropped:
                told.append((*oldest, dropped))
        if (name, said) not in self._kinds and len(self._kinds) >= MAX_KINDS:
            name, said = ALL_ELSE
        kind = self._kinds.setdefault((name, said), _Bucket(BURST, now))
        self._kinds.move_to_end((name, said))
        passes = kind.take(now, burst=BURST, per_second=PER_SECOND)
        passes = passes and self._all.take(now, burst=BURST_IN_ALL, per_second=PER_SECOND_IN_ALL)
        if not passes:
            kind.dropped += 1
        elif kind.dropped:
            told.append((name, said, kind.dropped))
            kind.dropped = 0
        return passes, told


def _said(record: logging.LogRecord) -> str:
    """Return the message of a line without its values: structlog's event, or the standard library's format."""
    message: Any = record.msg
    try:
        return str(message["event"])[:MAX_KIND]
    except (TypeError, KeyError):
        return str(message)[:MAX_KIND]
