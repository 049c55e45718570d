"""Tasks of a process that look at something now and then, all at the same moments. While they find nothing to do, they
cost as much as the process's wake-ups for them."""

import asyncio
import math
from typing import Final

BEAT_SECONDS: Final = 0.5


async def rest(seconds: float) -> None:
    """Sleep until the last beat that is at most `seconds` away. Without such a beat, sleep for `seconds`."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(within(seconds, now=loop.time()) - loop.time())


def within(seconds: float, *, now: float) -> float:
    """Return the last beat at most `seconds` after `now`, by the same clock, or `now + seconds` without one."""
    beat = math.floor((now + seconds) / BEAT_SECONDS) * BEAT_SECONDS
    return beat if beat > now else now + seconds
