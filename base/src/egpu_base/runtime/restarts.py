"""Work beside a process's own tasks that should never end: it is started again, and every end of it is in the log."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

AGAIN_SECONDS: Final = 1.0

log = structlog.get_logger(__name__)


async def kept_running(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work` again whenever it ends, until this is cancelled."""
    while True:
        try:
            await work()
            log.error("a task ended although it should run for ever; it is started again", task=name)
        except Exception:
            log.exception("a task failed; it is started again", task=name)
        await asyncio.sleep(AGAIN_SECONDS)
