"""The life of a command in the foreground: until it ends, or a signal ends it."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine
from typing import Any


def run_until_signal(work: Coroutine[Any, Any, int | None], *, note: Callable[[str], None]) -> int:
    """Run `work` to its end, or until SIGINT or SIGTERM cancels it, and clean up. Returns its result, 0 for None, and
    128 + the signal's number for cancelled work. A second signal interrupts nothing and is answered by a `note`."""

    async def supervise() -> int:
        task = asyncio.ensure_future(work)
        came: list[signal.Signals] = []

        def end(number: signal.Signals) -> None:
            # Cancel once only: a second cancellation would interrupt the clean-up.
            if not came:
                task.cancel()
            elif len(came) == 1:
                note("still cleaning up, please wait")
            came.append(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end, number)
        try:
            return await task or 0
        except asyncio.CancelledError:
            return 128 + came[0] if came else 1

    return asyncio.run(supervise())


async def until_cancelled() -> None:
    """Wait until `run_until_signal` cancels this task because of a signal."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
