"""What runs on this machine against what the broker ordered."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec
import structlog

from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.adapters.inotify import FileWatch
from egpu.adapters.nvml import CardReading
from egpu.adapters.pool import messages
from egpu.adapters.processes import Process
from egpu.adapters.slices.attribution import WatchedSlice
from egpu.adapters.slices.overruns import Overrun
from egpu.core.leasing.records import LeaseIdentity, LeaseRecord, RunningLease
from egpu.errors import ElasticGPUError

log = structlog.get_logger(__name__)

READY_SECONDS = 20.0
ENDING_SECONDS = 1.0
"""An executor that closed its events is ending: for so long it is looked at again and again."""
ALL_SECONDS = 30.0
REST = 200.0
"""Between two looks at all executors, whatever they said, and how many times as long as one takes that is at least."""
WATCHED_AT_ONCE = 50
END_AGAIN_SECONDS = 1.0
END_ALL_SECONDS = 30.0


class LeaseOwner(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is kept beside a lease's executor; its cards and limits are the executor's own."""

    lease: LeaseIdentity
    fit_by: float | None = None

    @classmethod
    def of(cls, record: LeaseRecord) -> LeaseOwner:
        return cls(lease=msgspec.convert(record, LeaseIdentity, from_attributes=True), fit_by=record.fit_by)


LeaseExecutor = Executor[LeaseOwner]
_State = tuple[LeaseExecutor, ExecutorRecord[LeaseOwner], int]
"""An executor, what it was told, and how much it has said."""


class LeaseSupervisor:
    """`changed` is set when there is something new to report. `read` is the order that was read last."""

    def __init__(self, executors: ExecutorSupervisor[LeaseOwner], *, watch_seconds: float) -> None:
        self._executors = executors
        self._watch_seconds = watch_seconds
        self._wanted: dict[str, LeaseRecord] = {}
        self._starting: dict[str, LeaseRecord] = {}
        self._failed: dict[str, RunningLease] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.cards: dict[str, CardReading] = {}
        self._followed: dict[str, LeaseExecutor] = {}
        self._idle: dict[str, tuple[_State, RunningLease]] = {}
        self._told = asyncio.Event()
        """There is something for `watch` to see."""
        self.prepare: Callable[[str, Process], Awaitable[None]] | None = None
        """What the network of a caller needs before a program comes: by the caller and a process in it."""
        self.changed = asyncio.Event()
        self.read = ("", 0)

    async def adopt(self) -> None:
        """Find the executors of an earlier run. Raises Unavailable."""
        await self._executors.adopt()
        self.changed.set()

    def is_unused(self, lease: str) -> bool:
        """Whether no program uses a lease of which we have the executor. From any thread."""
        executor = self._executors.running.get(lease)
        return executor is not None and executor.sessions == 0

    def executor(self, lease: str) -> LeaseExecutor | None:
        """The executor of a lease that may be used."""
        return self._executors.usable(lease)

    def report(self) -> tuple[RunningLease, ...]:
        """All that runs, starts, ends or failed. Reads the usage files."""
        running = self._executors.running
        starting = [
            RunningLease(record=record, occupied_mib=tuple(share.memory_mib for share in record.cards))
            for record in self._starting.values()
        ]
        self._idle = {name: idle for name, idle in self._idle.items() if name in running}
        started = [executor for lease, executor in running.items() if lease not in self._starting]
        return (*map(self._told_of, started), *starting, *self._failed.values())

    def _told_of(self, executor: LeaseExecutor) -> RunningLease:
        """What the broker is told of an executor. While no program uses it that is the same, however often it is
        asked, until it says something or gets another record."""
        state = executor, executor.record, executor.said_bytes
        idle = self._idle.get(executor.name)
        if idle is not None and idle[0] == state:
            return idle[1]
        told = _running(executor)
        if not executor.sessions:
            self._idle[executor.name] = state, told
        return told

    def networks(self) -> dict[str, Process]:
        """By caller one that runs, and so is in the caller's network."""
        found: dict[str, Process] = {}
        for one in self._executors.running.values():
            if one.record.network not in ("", *found) and one.process.is_alive():
                found[one.record.network] = one.process
        return found

    def watched(self) -> list[WatchedSlice]:
        """The slices that run, to be compared with what the driver says. From any thread."""
        return [executor.watched(lease) for lease, executor in list(self._executors.running.items())]

    def end_over_limit(self, overrun: Overrun) -> None:
        """Begin to end a lease that holds more memory than it may."""
        lease = str(overrun.slice.key)
        executor = self._executors.running.get(lease)
        # Another executor may have the name by now, and this one may be ending already.
        same = executor is not None and executor.process.pid == overrun.slice.session
        if executor is not None and same and not self._executors.is_ending(lease):
            self._spawn(self._end(executor, str(overrun), over_limit=True))

    def order(self, orders: messages.Orders) -> None:
        """Begin to make what runs what is wanted."""
        self._wanted = {record.lease: record for record in orders.leases}
        self.read = (orders.epoch, orders.version)
        for lease in self._failed.keys() - self._wanted.keys():
            del self._failed[lease]
        for lease, executor in self._executors.running.items():
            if lease not in self._wanted and not self._executors.is_ending(lease):
                self._spawn(self._end(executor))
        for lease, record in self._wanted.items():
            if executor := self._executors.running.get(lease):
                self._resize(executor, record)
            elif lease not in self._starting and lease not in self._failed:
                self._starting[lease] = record
                self._spawn(self._start(record))
        self.changed.set()

    async def end_all(self) -> None:
        """End every lease, those being started too; what does not end in END_ALL_SECONDS stays, and is said."""
        self._wanted = {}
        for lease, executor in self._executors.running.items():
            if lease not in self._starting and not self._executors.is_ending(lease):
                self._spawn(self._end(executor))
        try:
            async with asyncio.timeout(END_ALL_SECONDS):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        except TimeoutError:
            log.warning("leases did not end", leases=sorted(self._executors.running), seconds=END_ALL_SECONDS)

    async def watch(self) -> None:
        """Look at who said something or ended, for ever, and now and then at all. Raises Unavailable."""
        loop, clock = asyncio.get_running_loop(), time.monotonic
        self._followed.clear()
        running = self._executors.running
        ending: dict[str, float] = {}
        all_at = clock()
        with FileWatch() as events:
            loop.add_reader(events.fileno(), self._told.set)
            try:
                while True:
                    self._told.clear()
                    told = self._follow(events) | events.read()
                    ending |= {name: clock() + ENDING_SECONDS for name, closed in told.items() if closed}
                    ending = {name: until for name, until in ending.items() if name in running and until > clock()}
                    if clock() >= all_at:
                        took_seconds = await self._look_at_all(list(running))
                        all_at = clock() + max(ALL_SECONDS, REST * took_seconds)
                    else:
                        await self._look_at_all([*told, *(ending.keys() - told)])
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._watch_seconds if ending else all_at - clock()):
                            await self._told.wait()
            finally:
                loop.remove_reader(events.fileno())

    def _follow(self, events: FileWatch) -> dict[str, bool]:
        """Watch what executors say that run by now; returns those that were not watched before."""
        running = self._executors.running
        for name, executor in list(self._followed.items()):
            if running.get(name) is not executor:  # another may have its name by now
                del self._followed[name]
                events.forget(name)
        new = running.keys() - self._followed.keys()
        for name in new:
            with contextlib.suppress(OSError):  # of one that is ending
                events.add(name, running[name].events)
                self._followed[name] = running[name]
        return dict.fromkeys(new, False)

    async def _look_at_all(self, names: Sequence[str]) -> float:
        """Never at many in one go; returns how many seconds of a processor it took."""
        took_seconds = 0.0
        for first in range(0, len(names), WATCHED_AT_ONCE):
            began = time.thread_time()
            for name in names[first : first + WATCHED_AT_ONCE]:
                if executor := self._executors.running.get(name):
                    self._look_at(executor)
            took_seconds += time.thread_time() - began
            await asyncio.sleep(0)
        return took_seconds

    def _look_at(self, executor: LeaseExecutor) -> None:
        lease = executor.name
        before = (executor.ready, executor.sessions)
        executor.follow()
        if before != (executor.ready, executor.sessions):
            self.changed.set()
        # Of one that is still starting `_start` says why it died: noticed here, too, it would have two ends.
        if lease not in self._starting and not self._executors.is_ending(lease) and not executor.is_alive():
            self._spawn(self._end(executor, f"its executor is gone: {executor.why_dead()}"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, record: LeaseRecord) -> None:
        lease = record.lease
        minors = {uuid: card.minor for uuid, card in self.cards.items()}
        owner = LeaseOwner.of(record)
        try:
            executor = await self._executors.launch(
                ExecutorRecord(
                    name=lease,
                    owner=owner,
                    cards=record.cards,
                    minors=minors,
                    network=owner.lease.peer,
                    caller=owner.lease.peer,
                )
            )
            if self.prepare is not None:
                await self.prepare(owner.lease.peer, executor.process)
            await self._executors.until_ready(executor)
        except ElasticGPUError as error:
            if executor := self._executors.running.get(lease):
                await self._end(executor)
            self._fail(record, str(error))
            return
        finally:
            del self._starting[lease]
            self._told.set()
        # What was ordered while it started.
        if wanted := self._wanted.get(lease):
            self._resize(executor, wanted)
        else:
            self._spawn(self._end(executor))
        self.changed.set()

    def _fail(self, record: LeaseRecord, reason: str, *, over_limit: bool = False) -> None:
        """Nothing of it runs, and the broker is told why until it has ended the lease."""
        log.warning("a lease has no executor", lease=record.lease, reason=reason)
        if record.lease in self._wanted:
            nothing = tuple(0 for _ in record.cards)
            self._failed[record.lease] = RunningLease(
                record=record, occupied_mib=nothing, failure=reason, over_limit=over_limit
            )
        self.changed.set()

    def _resize(self, executor: LeaseExecutor, record: LeaseRecord) -> None:
        if _record(executor) == record or self._executors.is_ending(record.lease):
            return
        try:
            executor.resize(record.cards, LeaseOwner.of(record))
        except (ElasticGPUError, OSError) as error:
            log.warning("limits not changed", lease=record.lease, reason=str(error))
            return
        limits = [f"{share.core} % {share.memory_mib} MiB" for share in record.cards]
        log.info("limits changed", lease=record.lease, cards=limits)

    async def _end(self, executor: LeaseExecutor, failure: str = "", *, over_limit: bool = False) -> None:
        """`failure`: it was not ordered to end. `over_limit`: it held more memory than it may."""
        while True:
            try:
                await self._executors.end(executor)
                break
            except ElasticGPUError as error:
                # It stays in the reports, and so its cards stay taken, until it is really gone.
                log.warning("executor does not end", lease=executor.name, reason=str(error))
                await asyncio.sleep(END_AGAIN_SECONDS)
        if failure:
            self._fail(_record(executor), failure, over_limit=over_limit)
        self.changed.set()


def _record(executor: LeaseExecutor) -> LeaseRecord:
    """The lease as its server says it."""
    owner = executor.record.owner
    return LeaseRecord(**msgspec.structs.asdict(owner.lease), cards=executor.record.cards, fit_by=owner.fit_by)


def _running(executor: LeaseExecutor) -> RunningLease:
    """What the broker is told of an executor that runs."""
    used = executor.usage()
    return RunningLease(
        record=_record(executor),
        occupied_mib=executor.allowed_mib(used),
        used_mib=used.memory_mib,
        gpu_seconds=used.gpu_seconds,
        ready=executor.ready,
        sessions=executor.sessions,
    )
