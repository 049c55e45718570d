"""Time of day that goes on evenly, for what is written down and measured too."""

import time
from collections.abc import Callable


def even_time_of_day() -> Callable[[], float]:
    """Return a clock in seconds since the epoch. It reads the time of day once, here, and then follows the monotonic
    clock. So a minute takes a minute by it, even if the time of day is set meanwhile."""
    at_zero = time.time() - time.monotonic()
    return lambda: at_zero + time.monotonic()
