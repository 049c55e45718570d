"""The executors of one directory, kept as ordered: found again, started until they take sessions, ended until nothing
of them runs. Slots, pods of other nodes and leases each say in their own words what is ordered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, Generic

import structlog

from egpu.adapters.executors.parents import Parent
from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import ExecutorRecord, Owner
from egpu.adapters.private import private_directory
from egpu.errors import TerminalError, Unavailable

log = structlog.get_logger(__name__)

READY_SECONDS: Final = 10.0
"""An executor that has not said that it is ready by then has failed."""
POLL_SECONDS: Final = 0.005


class ExecutorSupervisor(Generic[Owner]):
    """The executors of one kind of owner, in directories below `directory`. `running` holds by name every one that was
    started or found and of which something may still run."""

    def __init__(
        self,
        directory: Path,
        owner: type[Owner],
        *,
        parent: Parent,
        private: bool = False,
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        """`private`: nobody else of this machine may pass through the directory, whatever the sockets in it allow.
        Raises NotPrivate, Unavailable: as `private_directory`."""
        self._owner = owner
        self._parent = parent
        self._ready_seconds = ready_seconds
        self._ending: dict[str, asyncio.Task[None]] = {}
        self.running: dict[str, Executor[Owner]] = {}
        self.any_runs = asyncio.Event()
        """For those who look after them: there is one."""
        directory = private_directory(directory)  # records in it say which processes are ours to end
        self._directory = directory
        if private:
            directory.chmod(0o700)

    async def adopt(self) -> None:
        """Find the executors of an earlier run. Raises Unavailable when what is left of others does not end."""
        for executor in await asyncio.to_thread(self._parent.find, self._directory, self._owner):
            self._add(executor)
            log.info("executor found again", name=executor.name, pid=executor.process.pid)

    def _add(self, executor: Executor[Owner]) -> None:
        self.running[executor.name] = executor
        self.any_runs.set()

    def usable(self, name: str) -> Executor[Owner] | None:
        """The executor of that name, if it takes sessions."""
        found = self.running.get(name)
        return found if found is not None and found.ready and name not in self._ending else None

    def is_ending(self, name: str) -> bool:
        return name in self._ending

    async def start(self, record: ExecutorRecord[Owner]) -> Executor[Owner]:
        """Start an executor; returns when it takes sessions. Raises as `launch` and `until_ready`."""
        executor = await self.launch(record)
        await self.until_ready(executor)
        return executor

    async def launch(self, record: ExecutorRecord[Owner]) -> Executor[Owner]:
        """Start the process of an executor under whose name nothing runs. Raises as `process.start`."""
        # Whoever asked may go away meanwhile; what was started is known all the same.
        return await asyncio.shield(asyncio.create_task(self._launch(record)))

    async def _launch(self, record: ExecutorRecord[Owner]) -> Executor[Owner]:
        executor = await asyncio.to_thread(self._parent.start, self._directory, record)
        self._add(executor)
        log.info("executor started", name=executor.name, pid=executor.process.pid)
        return executor

    async def until_ready(self, executor: Executor[Owner]) -> None:
        """Wait until it takes sessions; one that does not is ended.

        Raises TerminalError when it ended by itself, Unavailable when it took too long.
        """
        try:
            async with asyncio.timeout(self._ready_seconds):
                await _ready(executor)
        except TimeoutError as error:
            await self.end(executor)
            raise Unavailable(f"the executor did not start: not ready within {self._ready_seconds:g} s") from error
        except TerminalError:
            await self.end(executor)
            raise

    async def end(self, executor: Executor[Owner]) -> None:
        """Return when nothing of it runs; whoever else ends it meanwhile waits for the same. Raises Unavailable, and it
        counts as running still."""
        task = self._ending.get(executor.name)
        if task is None:
            if self.running.get(executor.name) is not executor:
                return
            task = self._ending[executor.name] = asyncio.create_task(self._end(executor))
        await asyncio.shield(task)

    async def _end(self, executor: Executor[Owner]) -> None:
        try:
            await asyncio.to_thread(self._parent.end, executor)
            del self.running[executor.name]
            if not self.running:
                self.any_runs.clear()
            log.info("executor ended", name=executor.name)
        except OSError as error:
            raise Unavailable(f"the executor {executor.name} does not end: {error}") from error
        finally:
            del self._ending[executor.name]


async def _ready(executor: Executor[Owner]) -> None:
    while not executor.ready:
        executor.follow()
        if not executor.is_alive():
            raise TerminalError(f"the executor did not start: {executor.why_dead()}")
        await asyncio.sleep(POLL_SECONDS)
