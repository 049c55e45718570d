"""Time of day that goes on evenly, for what is written down and measured too."""

import time
from collections.abc import Callable


def even_time_of_day() -> Callable[[], float]:
    """A clock in seconds since the epoch. It is read once, here, and goes on by the clock that nobody sets: whatever
    the time of day is set to afterwards, what lasts a minute by it lasts a minute."""
    at_zero = time.time() - time.monotonic()
    return lambda: at_zero + time.monotonic()
