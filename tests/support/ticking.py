"""A clock of which a test knows what it will say."""

from dataclasses import dataclass


@dataclass
class Ticking:
    """So many seconds pass each time that it is asked."""

    tick_seconds: float
    now: float = 0.0

    def __call__(self) -> float:
        self.now += self.tick_seconds
        return self.now
