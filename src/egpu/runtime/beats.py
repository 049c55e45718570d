"""Tasks of a process that look at something now and then, all at the same moments: while none finds anything to do,
what they cost is how often the process wakes up for them."""

import asyncio
import math
from typing import Final

BEAT_SECONDS: Final = 0.5


async def rest(seconds: float) -> None:
    """Sleep until the last beat that is at most `seconds` away, or for all of them where none is."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(within(seconds, now=loop.time()) - loop.time())


def within(seconds: float, *, now: float) -> float:
    """When the last beat at most `seconds` from `now` is, by the same clock; where there is none, the end of them."""
    beat = math.floor((now + seconds) / BEAT_SECONDS) * BEAT_SECONDS
    return beat if beat > now else now + seconds
