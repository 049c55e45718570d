"""What runs on this machine against what was ordered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import structlog

from egpu.adapters.executors.supervisor import Executor, Executors, failed
from egpu.adapters.nvml import Card
from egpu.adapters.pool import messages
from egpu.core.leasing.leases import LeaseRecord, RunningLease
from egpu.errors import ElasticGPUError

log = structlog.get_logger(__name__)

REST = 4.0
"""Looking at executors takes at most one part in five of a processor, however many there are."""
WATCHED_AT_ONCE = 50
START_SECONDS = 20.0
"""An executor that has not said that it is ready by then has failed."""


class Keeper:
    """`changed` is set when there is something new to report. `read` is the order that was read last."""

    def __init__(self, executors: Executors, *, watch_seconds: float) -> None:
        self._executors = executors
        self._watch_seconds = watch_seconds
        self._running: dict[str, Executor] = {}
        self._starting: dict[str, LeaseRecord] = {}
        self._failed: dict[str, RunningLease] = {}
        self._ending: set[str] = set()
        self._wanted: dict[str, LeaseRecord] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.cards: dict[str, Card] = {}
        self.changed = asyncio.Event()
        self.read = ("", 0)

    async def adopt(self) -> None:
        """Find the executors of an earlier run."""
        for executor in await asyncio.to_thread(self._executors.adopt):
            self._running[executor.record.lease] = executor
            log.info("executor found again", lease=executor.record.lease, pid=executor.process.pid)
        self.changed.set()

    def executor(self, lease: str) -> Executor | None:
        """The executor of a lease that may be used."""
        found = self._running.get(lease)
        return found if found is not None and found.ready and lease not in self._ending else None

    def report(self) -> tuple[RunningLease, ...]:
        """All that runs, starts, ends or failed. Reads the usage files."""
        starting = [
            RunningLease(record=record, occupied_mib=tuple(share.memory_mib for share in record.cards))
            for record in self._starting.values()
        ]
        return (*(one.running() for one in self._running.values()), *starting, *self._failed.values())

    def order(self, orders: messages.Orders) -> None:
        """Begin to make what runs what is wanted."""
        self._wanted = {record.lease: record for record in orders.leases}
        self.read = (orders.epoch, orders.version)
        for lease in self._failed.keys() - self._wanted.keys():
            del self._failed[lease]
        for lease in self._running.keys() - self._wanted.keys() - self._ending:
            self._ending.add(lease)
            self._spawn(self._end(self._running[lease]))
        for lease, record in self._wanted.items():
            if lease in self._running:
                self._resize(self._running[lease], record)
            elif lease not in self._starting and lease not in self._failed:
                self._starting[lease] = record
                self._spawn(self._start(record))
        self.changed.set()

    async def watch(self) -> None:
        """Look at every executor, for ever; the more there are, the less often, and never at many in one go."""
        took = 0.0
        while True:
            await asyncio.sleep(max(self._watch_seconds, REST * took))
            took, all_of_them = 0.0, list(self._running.values())
            for first in range(0, len(all_of_them), WATCHED_AT_ONCE):
                began = time.thread_time()
                for executor in all_of_them[first : first + WATCHED_AT_ONCE]:
                    self._look_at(executor)
                took += time.thread_time() - began
                await asyncio.sleep(0)

    def _look_at(self, executor: Executor) -> None:
        lease = executor.record.lease
        before = (executor.ready, executor.sessions)
        executor.follow()
        if before != (executor.ready, executor.sessions):
            self.changed.set()
        if lease in self._running and lease not in self._ending and not executor.is_alive():
            log.warning("executor gone", lease=lease, reason=executor.why_dead())
            self._ending.add(lease)
            self._spawn(self._end(executor))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, record: LeaseRecord) -> None:
        lease = record.lease
        try:
            minors = {uuid: card.minor for uuid, card in self.cards.items()}
            executor = await asyncio.to_thread(self._executors.start, record, minors)
        except ElasticGPUError as error:
            log.warning("executor not started", lease=lease, reason=str(error))
            self._fail(record, str(error))
            return
        self._running[lease] = executor
        del self._starting[lease]
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while not executor.ready and lease not in self._ending:
            executor.follow()
            if not executor.is_alive() or asyncio.get_running_loop().time() > deadline:
                reason = executor.why_dead() if not executor.is_alive() else f"not ready within {START_SECONDS:g} s"
                self._ending.add(lease)
                await self._end(executor)
                self._fail(record, f"the executor did not start: {reason}")
                return
            await asyncio.sleep(self._watch_seconds / 4)
        log.info("executor started", lease=lease, pid=executor.process.pid, holder=record.holder)
        self._catch_up(executor)
        self.changed.set()

    def _catch_up(self, executor: Executor) -> None:
        """What was ordered while it started."""
        lease = executor.record.lease
        wanted = self._wanted.get(lease)
        if wanted is not None:
            self._resize(executor, wanted)
        elif lease not in self._ending:
            self._ending.add(lease)
            self._spawn(self._end(executor))

    def _fail(self, record: LeaseRecord, reason: str) -> None:
        self._starting.pop(record.lease, None)
        if record.lease in self._wanted:
            self._failed[record.lease] = failed(record, reason)
        self.changed.set()

    def _resize(self, executor: Executor, record: LeaseRecord) -> None:
        before = (executor.record.cards, executor.record.fit_by)
        if before == (record.cards, record.fit_by) or record.lease in self._ending:
            return
        try:
            executor.resize(record.cards, record.fit_by)
        except (ElasticGPUError, OSError) as error:
            log.warning("limits not changed", lease=record.lease, reason=str(error))
            return
        log.info("limits changed", lease=record.lease, cards=_text(record))

    async def _end(self, executor: Executor) -> None:
        lease = executor.record.lease
        while True:
            try:
                await asyncio.to_thread(executor.end)
                break
            except (ElasticGPUError, OSError) as error:
                # It stays in the reports, and so its cards stay taken, until it is really gone.
                log.warning("executor does not end", lease=lease, reason=str(error))
                await asyncio.sleep(1.0)
        self._running.pop(lease, None)
        self._ending.discard(lease)
        log.info("executor ended", lease=lease)
        self.changed.set()


def _text(record: LeaseRecord) -> Sequence[str]:
    return [f"{share.core} % {share.memory_mib} MiB" for share in record.cards]
