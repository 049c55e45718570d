"""A question that many ask at the same moment, and that is asked once for all of them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Together(Generic[T]):
    """Nobody is given an answer to a question that was sent before he asked: so each gets what he would have got, had
    he asked alone. While one question is under way, all who come meanwhile wait for the next one together."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._under_way: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def answer(self) -> T:
        """What `ask` answers, or raises, to a question that is sent from now on."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._under_way))
            self._next.add_done_callback(_heard)
        return await asyncio.shield(self._next)  # who gives up does so alone

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._under_way, self._next = self._next, None  # whoever comes from here on is too late for this one
        return await self._ask()


def _heard(task: asyncio.Task[T]) -> None:
    """An error that nobody waited for any more is nobody's."""
    if not task.cancelled():
        task.exception()
