"""The executors of one directory, kept as ordered: found again, started until they accept sessions, ended until none of
their processes runs. Slots, pods of other nodes and leases each define their orders."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, Generic

import structlog

from egpu.adapters.executors.parents import Parent
from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import ExecutorRecord, Owner
from egpu_base.errors import TerminalError, Unavailable
from egpu_base.system.private import private_directory

log = structlog.get_logger(__name__)

READY_SECONDS: Final = 10.0
"""The time after which an executor without a report of readiness has failed."""
POLL_SECONDS: Final = 0.005


class ExecutorSupervisor(Generic[Owner]):
    """The executors of one kind of owner, in directories below `directory`. `running` has by name every one that was
    started or found and may still have a process."""

    def __init__(
        self,
        directory: Path,
        owner: type[Owner],
        *,
        parent: Parent,
        private: bool = False,
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        """With `private`, other users of this machine cannot pass through the directory, whatever its sockets allow.
        Raises NotPrivate, Unavailable: as `private_directory`."""
        self._owner = owner
        self._parent = parent
        self._ready_seconds = ready_seconds
        self._ending: dict[str, asyncio.Task[None]] = {}
        self.running: dict[str, Executor[Owner]] = {}
        self.any_runs = asyncio.Event()
        """Set when there is an executor to look after."""
        directory = private_directory(directory)  # its records name the processes that we end
        self._directory = directory
        if private:
            directory.chmod(0o700)

    async def adopt(self) -> None:
        """Find the executors of an earlier run. Raises Unavailable when the remains of others do not end."""
        for executor in await asyncio.to_thread(self._parent.find, self._directory, self._owner):
            self._add(executor)
            log.info("executor found again", name=executor.name, pid=executor.process.pid)

    def _add(self, executor: Executor[Owner]) -> None:
        self.running[executor.name] = executor
        self.any_runs.set()

    def usable(self, name: str) -> Executor[Owner] | None:
        """Return the executor of that name, if it accepts sessions."""
        found = self.running.get(name)
        usable = found is not None and found.ready and not found.moved and name not in self._ending
        return found if usable else None

    def is_ending(self, name: str) -> bool:
        return name in self._ending

    async def start(self, record: ExecutorRecord[Owner]) -> Executor[Owner]:
        """Start an executor, and return when it accepts sessions. Raises as `launch` and `until_ready`."""
        executor = await self.launch(record)
        await self.until_ready(executor)
        return executor

    async def launch(self, record: ExecutorRecord[Owner], *, restore: int | None = None) -> Executor[Owner]:
        """Start the process of an executor under whose name nothing runs. Raises as `process.start`."""
        # The caller may be cancelled meanwhile; the started process is recorded all the same.
        return await asyncio.shield(asyncio.create_task(self._launch(record, restore)))

    async def _launch(self, record: ExecutorRecord[Owner], restore: int | None) -> Executor[Owner]:
        executor = await asyncio.to_thread(self._parent.start, self._directory, record, restore=restore)
        self._add(executor)
        log.info("executor started", name=executor.name, pid=executor.process.pid)
        return executor

    async def until_ready(self, executor: Executor[Owner]) -> None:
        """Wait until it accepts sessions; end one that does not.

        Raises TerminalError when it ended by itself, Unavailable when it took too long.
        """
        try:
            async with asyncio.timeout(self._ready_seconds):
                await _ready(executor)
        except TimeoutError as error:
            await self.end(executor)
            raise Unavailable(f"the executor was not ready within {self._ready_seconds:g} s") from error
        except TerminalError:
            await self.end(executor)
            raise

    def kill_all(self) -> None:
        """Kill every executor without waiting, so that all end at once. Blocks; only for a parent in this process."""
        for executor in list(self.running.values()):
            executor.kill()

    async def end(self, executor: Executor[Owner]) -> None:
        """Return when none of its processes runs; concurrent callers wait for the same end. Raises Unavailable, and
        then it still counts as running."""
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
            raise Unavailable(f"cannot end executor {executor.name}: {error}") from error
        finally:
            del self._ending[executor.name]


async def _ready(executor: Executor[Owner]) -> None:
    while not executor.ready:
        executor.follow()
        if not executor.is_alive():
            raise TerminalError(f"the executor did not start: {executor.why_dead()}")
        await asyncio.sleep(POLL_SECONDS)
