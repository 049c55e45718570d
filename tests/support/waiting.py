"""Waiting for what must happen: `until` where there is an event loop, `wait_until` where there is none.

The deadline is long, because machines are shared: a wait ends when the thing happens, so only a failing test is slow.
How fast things are is for the benchmarks.
"""

import asyncio
import inspect
import signal
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, overload

DEADLINE_SECONDS: Final = 90.0
"""After this, what a test waits for is called a hang."""

POLL_SECONDS: Final = (0.01, 0.1)
"""The shortest and the longest pause between two looks."""

SLOW_POLL_SECONDS: Final = 0.5
"""The longest pause after a look that takes longer still, such as one that runs kubectl."""

PAUSES_PER_LOOK: Final = 4
"""A pause is so many times as long as the look before it. A look that runs kubectl would else keep a core busy, and
what it waits for would take longer."""

T = TypeVar("T")
What = str | Callable[[], str]
"""What is waited for, for the failure's message; a function where the message is to say how things stand then."""


@overload
async def until(condition: Callable[[], Awaitable[T | None]], what: What = ..., *, seconds: float = ...) -> T: ...
@overload
async def until(condition: Callable[[], T | None], what: What = ..., *, seconds: float = ...) -> T: ...
async def until(condition: Callable[[], Any], what: What = "", *, seconds: float = DEADLINE_SECONDS) -> Any:
    """What the condition (a function, or a coroutine function) answers, as soon as that is true.

    Raises AssertionError after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        _check(deadline, what, answer)
        await asyncio.sleep(_pause(began))


def wait_until(condition: Callable[[], T | None], what: What = "", *, seconds: float = DEADLINE_SECONDS) -> T:
    """As `until`, where there is no event loop."""
    deadline = time.monotonic() + seconds
    began = time.monotonic()
    while not (answer := condition()):
        _check(deadline, what, answer)
        time.sleep(_pause(began))
        began = time.monotonic()
    return answer


def _pause(began: float) -> float:
    """Return the seconds to the next look, after one that began then."""
    (shortest, longest), look = POLL_SECONDS, time.monotonic() - began
    return max(shortest, min(longest, PAUSES_PER_LOOK * look), min(SLOW_POLL_SECONDS, look))


def _check(deadline: float, what: What, answer: object) -> None:
    if time.monotonic() >= deadline:
        said = what() if callable(what) else what
        raise AssertionError(f"did not happen in time: {said or 'what was waited for'}; the last answer: {answer!r}")


@contextmanager
def within_the_deadline(seconds: float = DEADLINE_SECONDS) -> Generator[None]:
    """Inside, a call that blocks longer, such as the opening of a FIFO, ends with an AssertionError."""

    def ring(*_: object) -> None:
        raise AssertionError(f"a call has blocked for {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
