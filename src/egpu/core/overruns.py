"""When memory beyond a slice's limit has a consequence: what lasts, and how time over the limit weighs.

Whoever looks brings what it saw, and when. Time over the limit weighs more the farther it is over, and time below it
less: who takes breaks, or gives back in the last moment, is not better off than who goes on.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

LOOKS: Final = 3
"""Two things cannot be read at one moment: what is seen once may be a call under way."""
CONTEXT_BYTES: Final = 768 * 1024 * 1024
"""Beyond a limit that was used up before it came, a context may stay: nobody is ended for this much. An empty one has
up to 612 MiB (a B200), and takes more when the driver loads code into it."""
OVERRUN_SECONDS: Final = 5.0
"""So much time over the limit, weighed, and a slice is to be ended."""
MOST_WEIGHT: Final = 8.0
"""Of a second over the limit: with `CONTEXT_BYTES` beyond it weighs one, with n times as much n."""
RECOVERY: Final = 0.25
"""Of a second below the limit: who was over it for one second needs four below to be as before."""
MOST_ELAPSED_SECONDS: Final = 0.5
"""Between two looks, whatever the clock says: a watcher that was held up has not seen what was between."""
_MOST_LOOKS: Final = 64


class Lasting:
    """The least of what was seen for `seconds`, and at LOOKS looks; 0 as long as it was not seen for so long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: deque[tuple[float, int]] = deque(maxlen=_MOST_LOOKS)

    def see(self, value: int, *, now: float) -> int:
        """Look at `now`: there is so much. Less than nothing is nothing."""
        self._seen.append((now, max(0, value)))
        while len(self._seen) > LOOKS and now - self._seen[1][0] >= self._seconds:
            self._seen.popleft()
        if len(self._seen) < LOOKS or now - self._seen[0][0] < self._seconds:
            return 0
        return min(seen for _, seen in self._seen)


def weight(excess_bytes: int) -> float:
    """What a second with so much beyond the limit counts; less than nothing where that is no overrun."""
    return min(excess_bytes / CONTEXT_BYTES, MOST_WEIGHT) if excess_bytes > CONTEXT_BYTES else -RECOVERY


@dataclass(frozen=True)
class Overtime:
    """How long a slice was over its limit, weighed: 0 to OVERRUN_SECONDS. What is full stays so until it has been below
    for a while: who comes back from its end is ended at once."""

    seconds: float = 0.0

    def after(self, excess_bytes: int, *, elapsed_seconds: float) -> "Overtime":
        """After so long with so much beyond the limit (0 or less: it was below)."""
        elapsed = min(max(0.0, elapsed_seconds), MOST_ELAPSED_SECONDS)
        return Overtime(min(max(0.0, self.seconds + weight(excess_bytes) * elapsed), OVERRUN_SECONDS))

    @property
    def is_full(self) -> bool:
        return self.seconds >= OVERRUN_SECONDS


def allowed(*, limit: int, before: int, counted: int) -> int:
    """What a slice may hold whose limit may have been lowered below what it held: `before` is what it was allowed until
    now. What is counted keeps some of that, and never makes it more: a count can be a lie."""
    return max(limit, min(before, counted))
