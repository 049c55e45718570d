"""The reconcile loop: `reconcile(key)` reads everything again, brings the world nearer to what it should be, returns.

It is told only *which* object to look at, never what happened to it (level-triggered), so a lost or doubled event
changes nothing. A retryable error, or an unknown one, brings the key back with backoff; after a terminal one it stays
away until it is added again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from egpu.errors import Conflict, ElasticGPUError, TerminalError
from egpu.runtime.workqueue import WorkQueue

K = TypeVar("K", bound=Hashable)

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Result:
    """What reconcile asks for: nothing more, or another look after some seconds."""

    again_after_seconds: float | None = None


DONE = Result()


class Loop(Generic[K]):
    """Runs `workers` reconciles at once, never two of one key."""

    def __init__(self, name: str, reconcile: Callable[[K], Awaitable[Result]], *, workers: int = 4) -> None:
        self.name = name
        self.queue: WorkQueue[K] = WorkQueue()
        self._reconcile = reconcile
        self._workers = workers

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            try:
                result = await self._reconcile(key)
            except Conflict as error:
                log.debug("changed meanwhile", loop=self.name, key=str(key), reason=str(error))
                self.queue.retry(key)
            except TerminalError as error:
                self.queue.forget(key)
                log.warning("given up until it is added again", loop=self.name, key=str(key), reason=str(error))
            except ElasticGPUError as error:
                delay = self.queue.retry(key)
                log.warning(
                    "will be tried again", loop=self.name, key=str(key), after=round(delay, 2), reason=str(error)
                )
            except Exception:
                delay = self.queue.retry(key)
                log.exception("reconcile failed", loop=self.name, key=str(key), after=round(delay, 2))
            else:
                self.queue.forget(key)
                if result.again_after_seconds is not None:
                    self.queue.add_after(key, result.again_after_seconds)
            finally:
                self.queue.done(key)
            await asyncio.sleep(0)  # where nothing had to be waited for, ten thousand keys in a row are one long turn
