"""Groups of tasks that should run as long as their process: the end of one, with an error or without, ends the group.

A plain task group goes on when one of its tasks returns, so what that task watched would be watched no more.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from egpu_base.runtime.supervisor import TaskEndedError


class EndlessTasks:
    """While entered, `start` tasks. Raises the first task's error in an ExceptionGroup, as `asyncio.TaskGroup` does."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> "EndlessTasks":
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._group.__aexit__(*error)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task. It may be cancelled, but not end."""
        task = self._group.create_task(_endless(work), name=work.__qualname__)
        task.add_done_callback(lambda _: work.close())  # one that was cancelled before it began would be warned about
        return task


async def _endless(work: Coroutine[Any, Any, None]) -> None:
    await work
    raise TaskEndedError(f"{work.__qualname__} ended unexpectedly; it should run as long as the process")
