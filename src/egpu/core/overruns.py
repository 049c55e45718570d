"""Overruns: memory use beyond a slice's limit that lasts, weighed by time.

The caller provides readings and their times. Time over the limit weighs more with a larger excess. Time below the limit
weighs less, so that breaks are no advantage.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

LOOKS: Final = 3
"""Readings of two values are not simultaneous: a single excess may be a call in progress."""
CONTEXT_BYTES: Final = 768 * 1024 * 1024
"""Excess without consequence: a context may stay beyond a limit that was used up before it. An empty one has up to 612
MiB (a B200), and grows when the driver loads code into it."""
OVERRUN_SECONDS: Final = 5.0
"""The weighed time over the limit after which a slice is terminated."""
MOST_WEIGHT: Final = 8.0
"""The largest weight of a second over the limit: an excess of n times `CONTEXT_BYTES` weighs n."""
RECOVERY: Final = 0.25
"""The weight of a second below the limit: one second over the limit takes four seconds below it."""
MOST_ELAPSED_SECONDS: Final = 0.5
"""The longest time between two readings that counts: a delayed watcher has not seen what was between."""
_MOST_LOOKS: Final = 64


class Lasting:
    """The least value seen for `seconds` and at LOOKS readings; 0 until then."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: deque[tuple[float, int]] = deque(maxlen=_MOST_LOOKS)

    def see(self, value: int, *, now: float) -> int:
        """Add a reading at `now`, and return the lasting value. Negative values count as 0."""
        self._seen.append((now, max(0, value)))
        while len(self._seen) > LOOKS and now - self._seen[1][0] >= self._seconds:
            self._seen.popleft()
        if len(self._seen) < LOOKS or now - self._seen[0][0] < self._seconds:
            return 0
        return min(seen for _, seen in self._seen)


def weight(excess_bytes: int) -> float:
    """Return the weight of a second with this excess; negative without an overrun."""
    return min(excess_bytes / CONTEXT_BYTES, MOST_WEIGHT) if excess_bytes > CONTEXT_BYTES else -RECOVERY


@dataclass(frozen=True)
class Overtime:
    """The weighed time of a slice over its limit, 0 to OVERRUN_SECONDS. A full value stays for a while below the limit:
    a program that returns after its end is terminated at once."""

    seconds: float = 0.0

    def after(self, excess_bytes: int, *, elapsed_seconds: float) -> "Overtime":
        """Return the overtime after this long with this excess (0 or less: below the limit)."""
        elapsed = min(max(0.0, elapsed_seconds), MOST_ELAPSED_SECONDS)
        return Overtime(min(max(0.0, self.seconds + weight(excess_bytes) * elapsed), OVERRUN_SECONDS))

    @property
    def is_full(self) -> bool:
        return self.seconds >= OVERRUN_SECONDS


def allowed(*, limit: int, before: int, counted: int) -> int:
    """Return how much a slice may hold after its limit may have been lowered. `before` is the previous allowance; what
    is counted keeps a part of it and never raises it, as a count can be false."""
    return max(limit, min(before, counted))
