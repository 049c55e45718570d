"""Compares this machine's executors with the broker's orders."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec
import structlog

from egpu.adapters.cards.nvml import CardReading
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.executors.supervisor import POLL_SECONDS, ExecutorSupervisor
from egpu.adapters.pool import messages
from egpu.adapters.slices.attribution import WatchedSlice
from egpu.adapters.slices.overruns import Overrun
from egpu.apps.serve.arrivals import Arrivals
from egpu.apps.serve.owners import LeaseExecutor, LeaseOwner, has_moved, lease_record, running_lease, set_owner
from egpu.core.leasing.records import LeaseRecord, RunningLease, executor_name
from egpu_base.errors import ElasticGPUError, TerminalError
from egpu_base.system.inotify import FileWatch
from egpu_base.system.processes import Process

log = structlog.get_logger(__name__)

READY_SECONDS = 20.0
ENDING_SECONDS = 1.0
"""The time for which an executor that closed its events, and so is ending, is polled."""
ALL_SECONDS = 30.0
REST = 200.0
"""Pause between two looks at all executors, and at least how many times the time that one look takes."""
WATCHED_AT_ONCE = 50
END_AGAIN_SECONDS = 1.0
END_ALL_SECONDS = 10.0
"""The time after which Ctrl-C gives up on executors that the kernel does not end, for example in a driver call."""
END_ALL_POLL_SECONDS = 0.05


_State = tuple[LeaseExecutor, ExecutorRecord[LeaseOwner], int]
"""An executor, its order, and its progress."""


class LeaseSupervisor:
    """Runs the leases' executors. `changed` is set when there is something new to report. `read` is the order that was
    read last."""

    def __init__(
        self,
        executors: ExecutorSupervisor[LeaseOwner],
        arrivals: Arrivals,
        *,
        watch_seconds: float,
        movable: bool = False,
    ) -> None:
        """`movable`: the sessions of new executors can move."""
        self._executors = executors
        self._arrivals = arrivals
        self._movable = movable
        self._watch_seconds = watch_seconds
        self._wanted: dict[str, LeaseRecord] = {}
        self._starting: dict[str, LeaseRecord] = {}
        self._failed: dict[str, RunningLease] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.cards: dict[str, CardReading] = {}
        self._followed: dict[str, LeaseExecutor] = {}
        self._idle: dict[str, tuple[_State, RunningLease]] = {}
        self._wake = asyncio.Event()
        """Set when `watch` has something to see."""
        self.prepare: Callable[[str, Process], Awaitable[None]] | None = None
        """Prepares the network of a caller before a program comes: gets the caller and a process in the network."""
        self.changed = asyncio.Event()
        self.read = ("", 0)

    async def adopt(self) -> None:
        """Find the executors of an earlier run. Raises Unavailable."""
        await self._executors.adopt()
        self.changed.set()

    @property
    def running(self) -> dict[str, LeaseExecutor]:
        """Return by name every executor that may still have a process, or whose sessions have moved."""
        return self._executors.running

    def is_unused(self, executor: str) -> bool:
        """Return whether no program uses an executor that runs here. From any thread."""
        found = self._executors.running.get(executor)
        return found is not None and found.sessions == 0

    def executor(self, lease: str, place: int | None = None) -> LeaseExecutor | None:
        """Return the executor of a lease that may be used, at its place of this number; None for its final place."""
        if place is not None:
            return self._executors.usable(executor_name(lease, place))
        found = [
            one
            for one in self._executors.running.values()
            if one.record.owner.lease.lease == lease and not one.record.owner.arriving
        ]
        latest = max(found, key=lambda one: one.record.owner.place, default=None)
        return None if latest is None else self._executors.usable(latest.name)

    def report(self) -> tuple[RunningLease, ...]:
        """Return all running, starting, ending and failed leases. Reads the usage files."""
        running = self._executors.running
        starting = [
            RunningLease(
                record=record,
                occupied_mib=tuple(share.memory_mib for share in record.cards),
                arriving=self._arrivals.expects(record),
            )
            for record in self._starting.values()
        ]
        self._idle = {name: idle for name, idle in self._idle.items() if name in running}
        started = [executor for lease, executor in running.items() if lease not in self._starting]
        return (*map(self._report_of, started), *starting, *self._failed.values())

    def _report_of(self, executor: LeaseExecutor) -> RunningLease:
        """Return the report of one executor. It stays the same while no program uses the executor, until the executor
        sends an event or gets another record."""
        state = executor, executor.record, executor.said_bytes
        idle = self._idle.get(executor.name)
        if idle is not None and idle[0] == state:
            return idle[1]
        report = running_lease(executor)
        if not executor.sessions:
            self._idle[executor.name] = state, report
        return report

    def networks(self) -> dict[str, Process]:
        """Return, by caller, a running process in the caller's network."""
        found: dict[str, Process] = {}
        for one in self._executors.running.values():
            if one.record.network not in ("", *found) and one.process.is_alive():
                found[one.record.network] = one.process
        return found

    def watched(self) -> list[WatchedSlice]:
        """Return the running slices, for comparison with the driver. From any thread."""
        return [executor.watched(lease) for lease, executor in list(self._executors.running.items())]

    def end_over_limit(self, overrun: Overrun) -> None:
        """Begin to end a lease that has more memory than it may."""
        name = str(overrun.slice.key)
        executor = self._executors.running.get(name)
        # Another executor may have the name by now, and this one may be ending already.
        same = executor is not None and executor.process.pid == overrun.slice.session
        if executor is not None and same and not self._executors.is_ending(name):
            self._spawn(self._end(executor, str(overrun), over_limit=True))

    def order(self, orders: messages.Orders) -> None:
        """Begin to make the executors match the orders."""
        self._wanted = {record.executor: record for record in orders.leases}
        self.read = (orders.epoch, orders.version)
        for lease in self._failed.keys() - self._wanted.keys():
            del self._failed[lease]
        for lease, executor in self._executors.running.items():
            if lease not in self._wanted and not self._executors.is_ending(lease):
                self._spawn(self._end(executor))
        for lease, record in self._wanted.items():
            if executor := self._executors.running.get(lease):
                self._apply(executor, record)
            elif lease not in self._starting and lease not in self._failed:
                self._starting[lease] = record
                self._spawn(self._start(record))
        self.changed.set()

    async def end_all(self) -> None:
        """End every lease, including starting ones. Those that do not end in END_ALL_SECONDS stay, and are logged.

        All are killed first, and each is removed once it is dead: none waits for another, and the more that are dead,
        the fewer processes each removal has to look at.
        """
        self._wanted = {}
        running = self._executors.running
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_ALL_SECONDS):
                await asyncio.to_thread(self._executors.kill_all)
                while running or self._tasks:
                    for lease, executor in running.items():
                        is_ours = lease not in self._starting and not self._executors.is_ending(lease)
                        if is_ours and not executor.is_alive():
                            self._spawn(self._end(executor))
                    await asyncio.sleep(END_ALL_POLL_SECONDS)
        if running:
            log.warning("leases did not end", leases=sorted(running), seconds=END_ALL_SECONDS)

    async def watch(self) -> None:
        """Handle executors that sent an event or ended, forever; look at all from time to time. Raises Unavailable."""
        loop, clock = asyncio.get_running_loop(), time.monotonic
        self._followed.clear()
        running = self._executors.running
        ending: dict[str, float] = {}
        all_at = clock()
        with FileWatch() as events:
            loop.add_reader(events.fileno(), self._wake.set)
            try:
                while True:
                    self._wake.clear()
                    signalled = self._follow(events) | events.read()
                    ending |= {name: clock() + ENDING_SECONDS for name, closed in signalled.items() if closed}
                    ending = {name: until for name, until in ending.items() if name in running and until > clock()}
                    if clock() >= all_at:
                        took_seconds = await self._look_at_all(list(running))
                        all_at = clock() + max(ALL_SECONDS, REST * took_seconds)
                    else:
                        await self._look_at_all([*signalled, *(ending.keys() - signalled)])
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._watch_seconds if ending else all_at - clock()):
                            await self._wake.wait()
            finally:
                loop.remove_reader(events.fileno())

    def _follow(self, events: FileWatch) -> dict[str, bool]:
        """Watch the events of executors that run by now, and return those that were not watched before."""
        running = self._executors.running
        for name, executor in list(self._followed.items()):
            if running.get(name) is not executor:  # another may have its name by now
                del self._followed[name]
                events.forget(name)
        new = running.keys() - self._followed.keys()
        for name in new:
            with contextlib.suppress(OSError):  # the file of an executor that is ending
                events.add(name, running[name].events)
                self._followed[name] = running[name]
        return dict.fromkeys(new, False)

    async def _look_at_all(self, names: Sequence[str]) -> float:
        """Look at all executors, in small groups, and return the processor seconds that it took."""
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
        if before != (executor.ready, executor.sessions) or executor.moved:
            self.changed.set()
        # If it is still starting, `_start` reports why it died: a second report from here would be wrong.
        ignored = lease in self._starting or self._executors.is_ending(lease)
        if not ignored and not executor.is_alive() and not has_moved(executor):
            self._spawn(self._end(executor, f"its executor is gone: {executor.why_dead()}"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, record: LeaseRecord) -> None:
        lease = record.executor
        try:
            executor = await self._launched(record)
            if record.executor in self._wanted and self._arrivals.expects(record):
                await self._until_restored(executor)
            else:
                await self._executors.until_ready(executor)
        except ElasticGPUError as error:
            arriving = self._arrivals.expects(record)
            if executor := self._executors.running.get(lease):
                await self._end(executor)
            self._fail(record, str(error), arriving=arriving)
            return
        finally:
            del self._starting[lease]
            self._arrivals.close(lease)
            self._wake.set()
        # Orders that came while it started.
        if wanted := self._wanted.get(lease):
            self._apply(executor, wanted)
        else:
            self._spawn(self._end(executor))
        self.changed.set()

    async def _launched(self, record: LeaseRecord) -> LeaseExecutor:
        """Start the process of a lease's executor; the target of a move has a stream to restore from."""
        arriving = self._arrivals.expects(record)
        minors = {uuid: card.minor for uuid, card in self.cards.items()}
        started = ExecutorRecord(
            name=record.executor, owner=LeaseOwner.of(record, arriving=arriving), cards=record.cards, minors=minors,
            network=record.peer, caller=record.peer, movable=self._movable and not record.shares_room,
            parkable=record.shares_room,
        )  # fmt: skip
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(contextlib.closing(self._arrivals.open(record))) if arriving else None
            executor = await self._executors.launch(started, restore=None if stream is None else stream.fileno())
        if self.prepare is not None:
            await self.prepare(record.peer, executor.process)
        return executor

    async def _until_restored(self, executor: LeaseExecutor) -> None:
        """Wait until the sessions are there, however long they take, or are not wanted any more. Raises
        TerminalError."""
        while not executor.ready and executor.name in self._wanted:
            executor.follow()
            if executor.waiting:
                self._arrivals.is_ready(executor.name)
            if not executor.is_alive():
                raise TerminalError(f"the sessions were not restored: {executor.why_dead()}")
            await asyncio.sleep(POLL_SECONDS)

    def _fail(
        self, record: LeaseRecord, reason: str, *, over_limit: bool = False, arriving: bool = False
    ) -> None:  # fmt: skip
        """Report the reason to the broker until it has ended the lease; nothing of it runs."""
        log.warning("lease has no executor", lease=record.lease, reason=reason)
        if record.executor in self._wanted:
            nothing = tuple(0 for _ in record.cards)
            self._failed[record.executor] = RunningLease(
                record=record, occupied_mib=nothing, failure=reason, over_limit=over_limit, arriving=arriving
            )
        self.changed.set()

    def _apply(self, executor: LeaseExecutor, record: LeaseRecord) -> None:
        """Carry out a changed order: other limits, or a place that is final now."""
        known = executor.record.owner
        arriving = known.arriving and self._arrivals.expects(record)
        if self._executors.is_ending(executor.name) or executor.moved:
            return
        if known.arriving != arriving:
            set_owner(executor, msgspec.structs.replace(known, arriving=arriving))
        if lease_record(executor) != record:
            self._resize(executor, record, LeaseOwner.of(record, arriving=arriving, leaving=known.leaving))

    def _resize(self, executor: LeaseExecutor, record: LeaseRecord, owner: LeaseOwner) -> None:
        try:
            executor.resize(record.cards, owner)
        except (ElasticGPUError, OSError) as error:
            log.warning("limits not changed", lease=record.lease, reason=str(error))
            return
        limits = [f"{share.core} % {share.memory_mib} MiB" for share in record.cards]
        log.info("limits changed", lease=record.lease, cards=limits)

    async def _end(self, executor: LeaseExecutor, failure: str = "", *, over_limit: bool = False) -> None:
        """End a lease. `failure`: why, if it was not ordered to end. `over_limit`: it had more memory than it may."""
        while True:
            try:
                await self._executors.end(executor)
                break
            except ElasticGPUError as error:
                # The lease stays in the reports, and its cards stay taken, until the executor has ended.
                log.warning("executor does not end", lease=executor.name, reason=str(error))
                await asyncio.sleep(END_AGAIN_SECONDS)
        if failure:
            arriving = executor.record.owner.arriving
            self._fail(lease_record(executor), failure, over_limit=over_limit, arriving=arriving)
        self.changed.set()
