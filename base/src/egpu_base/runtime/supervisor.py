"""Run the named tasks of one process: the first failure ends them all, a signal ends them cleanly, in bounded time."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, cast

import structlog

from egpu_base.errors import ElasticGPUError, TerminalError

SHUTDOWN_SECONDS = 5.0

log = structlog.get_logger(__name__)


class TaskEndedError(TerminalError):
    """A task that should run as long as the process does has returned."""


class Supervisor:
    """`add` tasks, then `await run()`.

    `run` returns after SIGTERM or SIGINT (or `stop()`), and raises the first task's error otherwise. In both cases
    every task is cancelled and gets SHUTDOWN_SECONDS to finish. `interrupted` is true after SIGINT (Ctrl-C).
    """

    def __init__(self, *, signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)) -> None:
        self._signals = signals
        self._tasks: dict[asyncio.Task[Any], bool] = {}
        self._stop = asyncio.Event()
        self.interrupted = False

    def add(self, name: str, work: Coroutine[Any, Any, Any], *, may_end: bool = False) -> None:
        """Add a task. With `may_end` it may return; otherwise its return is a failure of the process."""
        self._tasks[asyncio.create_task(work, name=name)] = may_end

    def stop(self) -> None:
        self._stop.set()

    def _signalled(self, number: signal.Signals) -> None:
        self.interrupted = number == signal.SIGINT
        self.stop()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        installed: list[signal.Signals] = []
        for one in self._signals:
            try:
                loop.add_signal_handler(one, self._signalled, one)
                installed.append(one)
            except (ValueError, RuntimeError, NotImplementedError):
                break  # not the main thread: our caller cancels us instead
        stop = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            await self._until_first_end(stop)
        finally:
            await self._wind_down([*self._tasks, stop])
            for one in installed:
                loop.remove_signal_handler(one)

    async def _until_first_end(self, stop: asyncio.Task[Any]) -> None:
        while True:
            ended, _ = await asyncio.wait([*self._tasks, stop], return_when=asyncio.FIRST_COMPLETED)
            for task in ended - {stop}:
                may_end = self._tasks.pop(task)
                if task.cancelled():
                    raise TaskEndedError(f"{task.get_name()} was cancelled")
                if (error := task.exception()) is not None:
                    raise _plain(error)
                if not may_end:
                    raise TaskEndedError(f"{task.get_name()} ended unexpectedly; it should run as long as the process")
            if stop in ended:
                log.info("stopping")
                return

    async def _wind_down(self, tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        done, stuck = await asyncio.wait(tasks, timeout=SHUTDOWN_SECONDS)
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.warning("error while stopping", task=task.get_name(), reason=str(_plain(error)))
        for task in stuck:
            log.error("task did not stop in time", task=task.get_name(), seconds=SHUTDOWN_SECONDS)


def _plain(error: BaseException) -> BaseException:
    """Return the cause inside nested task groups: one of our errors if possible, because it fits one line."""
    while isinstance(error, BaseExceptionGroup):
        inner = cast("tuple[BaseException, ...]", error.exceptions)  # pyright: ignore[reportUnknownMemberType]
        error = next((one for one in inner if isinstance(one, ElasticGPUError)), inner[0])
    return error
