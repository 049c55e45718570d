"""What `up` and `demo` share: a cluster's life around a command, and its progress on a terminal."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from egpu.cli.output import errors, note


def run_until_signal(work: Coroutine[Any, Any, int | None]) -> int:
    """Run to the end, or until SIGINT or SIGTERM cancels it; either way everything is cleaned up. Returns its result, 0
    for None, and 128 + the signal's number for work that a signal cut short."""

    async def supervise() -> int:
        task = asyncio.ensure_future(work)
        came: list[signal.Signals] = []

        def end(number: signal.Signals) -> None:
            # Once: a second cancellation would cut the cleaning up short.
            if not came:
                task.cancel()
            elif len(came) == 1:
                note("cleaning up; a moment, please")
            came.append(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end, number)
        try:
            return await task or 0
        except asyncio.CancelledError:
            return 128 + came[0] if came else 1

    return asyncio.run(supervise())


async def until_cancelled() -> None:
    """Wait for the signal that `run_until_signal` turns into a cancellation: the end of what was to stay up."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


@contextlib.contextmanager
def steps() -> Generator[Callable[[str], None], None, None]:
    """A function that says what is going on: a spinner on a terminal, a line each elsewhere."""
    if not errors.is_terminal:
        yield lambda step: note(f"… {step}")
        return
    with errors.status("starting") as status:
        yield lambda step: status.update(f"{step} …")
