"""Combine the same question of many callers into one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Coalescer(Generic[T]):
    """A caller never gets the answer to a question that was sent before it asked, so each gets the answer that it would
    get alone. While a question is under way, all new callers wait for the next one together."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._under_way: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    @property
    def idle(self) -> bool:
        """Return whether no question is under way or waits for its turn."""
        return self._next is None and (self._under_way is None or self._under_way.done())

    async def answer(self, *, or_under_way: bool = False) -> T:
        """Return, or raise, the answer to a question that is sent from now on. `or_under_way`: to the one that is under
        way, if one is."""
        if or_under_way and self._under_way is not None and not self._under_way.done():
            return await asyncio.shield(self._under_way)
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._under_way))
            self._next.add_done_callback(_heard)
        return await asyncio.shield(self._next)  # a caller that gives up does not cancel it for the others

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._under_way, self._next = self._next, None  # later callers wait for the next question
        return await self._ask()


def _heard(task: asyncio.Task[T]) -> None:
    """Ignore an error for which no caller waits any more."""
    if not task.cancelled():
        task.exception()
