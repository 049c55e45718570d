"""The reconcile loop: `reconcile(key)` reads everything again, moves the world nearer to the wanted state, and returns.

It learns only *which* object to look at, never what happened to it (level-triggered), so a lost or doubled event
changes nothing. After a retryable or unknown error the key is retried with backoff. After a terminal error it is
dropped until it is added again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from egpu_base.errors import Conflict, ElasticGPUError, TerminalError
from egpu_base.runtime.endless import EndlessTasks
from egpu_base.runtime.workqueue import WorkQueue

K = TypeVar("K", bound=Hashable)

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Result:
    """The outcome of a reconcile: nothing more to do, or another look after some seconds."""

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
        async with EndlessTasks() as group:
            for _ in range(self._workers):
                group.start(self._work())

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
                log.warning("not retried until it changes", loop=self.name, key=str(key), reason=str(error))
            except ElasticGPUError as error:
                delay = self.queue.retry(key)
                log.warning(
                    "failed: will be retried", loop=self.name, key=str(key), after=round(delay, 2), reason=str(error)
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
            await asyncio.sleep(0)  # else ten thousand keys that never wait would block the event loop
