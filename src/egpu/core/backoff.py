"""The wait after a slice was terminated for an overrun: longer each time, up to a limit. Pure."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

FIRST_SECONDS: Final = 10.0
MOST_SECONDS: Final = 300.0
FORGOTTEN_SECONDS: Final = 600.0
"""After so long without an overrun the wait starts at the beginning. All three are kubelet's values for containers."""
MAX_REMEMBERED: Final = 4096


@dataclass(frozen=True)
class Backoff:
    """The number of slices in a row that were terminated, and when the last was, in seconds of the caller's clock."""

    count: int = 0
    last: float = 0.0

    def again(self, now: float) -> "Backoff":
        """Count one more termination at `now`."""
        return Backoff(1 if self.is_forgotten(now) else self.count + 1, now)

    def wait_seconds(self, now: float) -> float:
        """Return the seconds to wait; 0: none. Setting the clock back makes no wait longer."""
        if not self.count:
            return 0.0
        whole: float = min(FIRST_SECONDS * 2 ** min(self.count - 1, 16), MOST_SECONDS)
        return min(max(0.0, self.last + whole - now), whole)

    def is_forgotten(self, now: float) -> bool:
        return not self.count or now - self.last >= FORGOTTEN_SECONDS

    def why(self, whose: str, now: float) -> str:
        """Return the message for the user who has to wait."""
        times = "once" if self.count == 1 else f"{self.count} times in a row"
        return (
            f"{whose} exceeded its GPU memory limit and was terminated {times}; "
            f"try again in {self.wait_seconds(now):.0f} s"
        )


class Backoffs:
    """The backoffs of the MAX_REMEMBERED users whose slices were terminated last."""

    def __init__(self) -> None:
        self._of: dict[Hashable, Backoff] = {}

    def of(self, whose: Hashable) -> Backoff:
        return self._of.get(whose, Backoff())

    def again(self, whose: Hashable, now: float) -> None:
        """Count one more termination at `now`."""
        found = self._of.pop(whose, Backoff())
        self._of = {each: one for each, one in self._of.items() if not one.is_forgotten(now)}
        self._of[whose] = found.again(now)
        while len(self._of) > MAX_REMEMBERED:
            del self._of[next(iter(self._of))]
