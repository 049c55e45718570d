"""How long somebody waits whose slice was ended for an overrun: longer each time, and not for ever. Pure."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

FIRST_SECONDS: Final = 10.0
MOST_SECONDS: Final = 300.0
FORGOTTEN_SECONDS: Final = 600.0
"""After so long without another one all is as before. These three are kubelet's for containers that end."""
MAX_REMEMBERED: Final = 4096


@dataclass(frozen=True)
class Backoff:
    """How often somebody's slices were ended, and when the last of them was, in seconds of the caller's clock."""

    count: int = 0
    last: float = 0.0

    def again(self, now: float) -> "Backoff":
        """One more was ended at `now`."""
        return Backoff(1 if self.is_forgotten(now) else self.count + 1, now)

    def wait_seconds(self, now: float) -> float:
        """How long until there may be another one; 0: now. A clock that was set back makes nobody wait longer."""
        if not self.count:
            return 0.0
        whole: float = min(FIRST_SECONDS * 2 ** min(self.count - 1, 16), MOST_SECONDS)
        return min(max(0.0, self.last + whole - now), whole)

    def is_forgotten(self, now: float) -> bool:
        return not self.count or now - self.last >= FORGOTTEN_SECONDS

    def why(self, whose: str, now: float) -> str:
        """What who has to wait is told."""
        times = "once" if self.count == 1 else f"{self.count} times in a row"
        return (
            f"{whose} held more GPU memory than it may and was ended for it, {times}: "
            f"try again in {self.wait_seconds(now):.0f} s"
        )


class Backoffs:
    """Of everybody: the MAX_REMEMBERED who were ended last."""

    def __init__(self) -> None:
        self._of: dict[Hashable, Backoff] = {}

    def of(self, whose: Hashable) -> Backoff:
        return self._of.get(whose, Backoff())

    def again(self, whose: Hashable, now: float) -> None:
        """One more of theirs was ended at `now`."""
        found = self._of.pop(whose, Backoff())
        self._of = {each: one for each, one in self._of.items() if not one.is_forgotten(now)}
        self._of[whose] = found.again(now)
        while len(self._of) > MAX_REMEMBERED:
            del self._of[next(iter(self._of))]
