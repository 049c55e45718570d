"""A thread that looks at something again and again, for looks that are too frequent for a task of the event loop."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


async def looking(look: Callable[[], float]) -> None:
    """Call `look` in its own thread until cancelled. `look` returns the seconds until its next call.

    Two switches between event loop and thread pool cost more than most looks, and a pool has few threads, of which this
    would occupy one for ever. Raises what `look` raises.
    """
    over = threading.Event()
    thread = ThreadPoolExecutor(1, thread_name_prefix="looking")

    def run() -> None:
        pause_seconds = 0.0
        while not over.wait(pause_seconds):
            pause_seconds = look()

    try:
        await asyncio.get_running_loop().run_in_executor(thread, run)
    finally:
        over.set()
        thread.shutdown(wait=False)
