"""Compares what slices count with what the driver says that they hold: charges the larger, and says who stays over.

Contexts and code that is loaded late take memory that nobody in the process can count, and a program may get at memory
behind the interposer's back. What the driver sees beyond the count becomes `overhead_bytes` of the slice's policy page,
which is taken off what may still be allocated. What it sees beyond the *limit* is an overrun: then every allocation is
refused, whatever is counted, and a slice that stays over is to be ended (`egpu.core.overruns` says when). The driver
alone decides on that; what a container writes into its usage file neither causes an overrun nor hides one.

How often: every INTERVAL_SECONDS, while something of a slice is on a card. Then what the cards have in use, which costs
little to ask, is looked at every ALERT_SECONDS; as soon as that moves by much, or while a slice is over its limit, the
driver is asked for every process at once. While nothing of any slice is on a card it is asked when anything moves, of
which one looks every INTERVAL_SECONDS, or every IDLE_SECONDS.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from egpu.adapters.nvml import CardProcess
from egpu.adapters.processes import Process
from egpu.adapters.slices.attribution import Attribution, WatchedSlice
from egpu.adapters.slices.pages import MEMORY_UNLIMITED, DevicePolicy, Usage, UsageReader, amend_policy, read_policy
from egpu.core.overruns import Lasting, Overtime, allowed, weight
from egpu.errors import ElasticGPUError

log = structlog.get_logger(__name__)

INTERVAL_SECONDS: Final = 0.25
ALERT_SECONDS: Final = 0.05
IDLE_SECONDS: Final = 2.0
MOVED_BYTES: Final = 64 * 1024 * 1024
"""By so much the memory in use on a card moves before its processes are asked for out of turn."""
UNCOUNTED_SECONDS: Final = 0.5
"""For so long the driver sees more than is counted before it is charged: a module is counted once it is loaded."""
REFUSED_SECONDS: Final = 0.1
"""For so long it sees more than the limit before all is refused."""
END_SECONDS: Final = 1.0
"""Those who were to be ended have so long to go before it is said again."""
#: The page is not written anew for less than this.
STEP_BYTES: Final = 1024 * 1024
_MIB: Final = 1024 * 1024
_chance: Final = random.SystemRandom()


class ProcessSource(Protocol):
    """What the driver says of each card, by its UUID; blocks. Both raise ElasticGPUError."""

    def processes(self) -> Mapping[str, tuple[CardProcess, ...]]:
        """Which processes hold how much."""
        ...

    def used_bytes(self) -> Mapping[str, int]:
        """How much of its memory is in use."""
        ...


@dataclass(frozen=True)
class Finding:
    """One slice on one card. `overhead_bytes` is what its policy page says now; `holders` are `processes` as they were
    recognised, so that no later one of the same pid is taken for them."""

    driver_bytes: int
    counted_bytes: int
    overhead_bytes: int
    processes: tuple[CardProcess, ...]
    holders: tuple[Process, ...] = ()


@dataclass(frozen=True)
class Overrun:
    """A slice that was over its limit for too long, and who of it holds the memory."""

    slice: WatchedSlice
    uuid: str
    driver_bytes: int
    limit_bytes: int
    processes: tuple[Process, ...]

    def __str__(self) -> str:
        times = weight(self.driver_bytes - self.limit_bytes)
        return (
            f"it holds {-(-self.driver_bytes // _MIB)} MiB of card {self.uuid} by the driver, may hold "
            f"{self.limit_bytes // _MIB} MiB, and was over that for too long (a second of so much counts {times:.1f})"
        )


@dataclass
class _Held:
    """What the driver says that one slice holds of one card."""

    listed: list[CardProcess] = field(default_factory=list[CardProcess])
    processes: list[Process] = field(default_factory=list[Process])

    @property
    def bytes(self) -> int:
        return sum(process.used_bytes for process in self.listed)


class _Record:
    """What is remembered of one slice on one card. `allowed`: what it may hold, lowered limits included."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.excess = 0
        self.overtime = Overtime()
        self._lasting_uncounted = Lasting(UNCOUNTED_SECONDS)
        self._lasting_excess = Lasting(REFUSED_SECONDS)
        self._told: tuple[Process, ...] = ()
        self._told_at = 0.0

    def look(self, held: int, *, counted: int, now: float, elapsed: float) -> tuple[int, bool]:
        """It holds so much, in bytes; returns what of that is to be charged beyond the count, and whether all is to be
        refused."""
        self.excess = held - self.allowed
        self.overtime = self.overtime.after(self.excess, elapsed_seconds=elapsed)
        uncounted = self._lasting_uncounted.see(held - min(counted, self.allowed), now=now)
        return uncounted, self._lasting_excess.see(self.excess, now=now) > 0

    def is_to_be_ended(self, processes: tuple[Process, ...], now: float) -> bool:
        """Whether it is to be said that they are to be ended: again only to others, or after a while."""
        if not self.overtime.is_full or weight(self.excess) < 0:
            return False
        if processes == self._told and now - self._told_at < END_SECONDS:
            return False
        self._told, self._told_at = processes, now
        return True


class MemoryWatch:
    """Keeps `overhead_bytes` of policy pages true. `findings` is the last comparison, by slice key and card UUID.

    Its owner calls `step` when `is_due`, and asks that again after `pause_seconds`.
    """

    def __init__(self, source: ProcessSource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._looked_at = clock()
        self._used: Mapping[str, int] = {}
        self._attribution = Attribution()
        self._records: dict[tuple[Hashable, str], _Record] = {}
        self._quiet: set[Hashable] = set()
        """Slices without processes on a card, whose pages say so."""
        self._is_busy = False
        self._rests_at: Hashable = None
        self._told = ""
        self.findings: Mapping[tuple[Hashable, str], Finding] = {}

    @property
    def pause_seconds(self) -> float:
        """Another one each time while something runs: nobody can know when it is not looked at."""
        return ALERT_SECONDS * _chance.uniform(0.5, 1.0) if self._is_busy else INTERVAL_SECONDS

    def is_due(self) -> bool:
        """Whether there is something to look at: it is time, somebody was over its limit just now, or what a card has
        in use has moved: by much, or while nothing runs at all."""
        if self._clock() - self._looked_at >= (INTERVAL_SECONDS if self._is_busy else IDLE_SECONDS):
            return True
        if any(record.excess > 0 or record.overtime.seconds for record in self._records.values()):
            return True
        try:
            used = self._source.used_bytes()
        except ElasticGPUError:
            return False  # the next look in turn says why
        least = MOVED_BYTES if self._is_busy else 1
        return any(abs(found - self._used.get(uuid, 0)) >= least for uuid, found in used.items())

    def step(self, slices: Iterable[WatchedSlice], stamp: Hashable = None) -> tuple[Overrun, ...]:
        """Compare once; returns those who are to be ended. Without an answer of the driver all stays as it is.

        `stamp`: another one when slices came or went. While it is the same, and nobody at all is on any card, they are
        not listed.
        """
        now = self._clock()
        elapsed, self._looked_at = now - self._looked_at, now
        if stamp is not None and stamp == self._rests_at and not any((self._processes() or {}).values()):
            return ()
        self._rests_at = None
        watched = {one.key: one for one in slices}
        self._quiet &= watched.keys()
        before = {key: UsageReader(one.usage).read_totals() for key, one in watched.items() if key not in self._quiet}
        processes = self._processes() if watched else dict[str, tuple[CardProcess, ...]]()
        if processes is None:
            return ()
        held = self._attribute(processes, watched, now)
        self._is_busy = bool(held)
        findings: dict[tuple[Hashable, str], Finding] = {}
        overruns: list[Overrun] = []
        for key in {*before, *held}:
            for uuid, finding, overrun in self._compare(watched[key], before.get(key), held.get(key, {}), now, elapsed):
                findings[key, uuid] = finding
                overruns += [] if overrun is None else [overrun]
        self._quiet = watched.keys() - held.keys()
        self._rest(watched.keys(), compared={*before, *held}, held=held.keys(), elapsed=elapsed)
        self._rests_at = None if self._records or any(processes.values()) else stamp
        self.findings = {key: one for key, one in self.findings.items() if key[0] in self._quiet} | findings
        return tuple(overruns)

    def _processes(self) -> Mapping[str, tuple[CardProcess, ...]] | None:
        try:
            used = self._source.used_bytes()
            found = self._source.processes()
        except ElasticGPUError as error:
            if str(error) != self._told:
                log.warning("what processes hold cannot be compared with what they count", reason=str(error))
            self._told = str(error)
            return None
        self._told, self._used = "", used
        return found

    def _attribute(
        self, processes: Mapping[str, tuple[CardProcess, ...]], watched: Mapping[Hashable, WatchedSlice], now: float
    ) -> dict[Hashable, dict[str, _Held]]:
        """What each slice holds, by its key and the card's UUID."""
        pids = {one.pid for listed in processes.values() for one in listed}
        owners = self._attribution.owners(pids, watched.values(), now=now)
        found: dict[Hashable, dict[str, _Held]] = {}
        for uuid, listed in processes.items():
            for one in listed:
                if one.pid in owners:
                    process, owner = owners[one.pid]
                    held = found.setdefault(owner.key, {}).setdefault(uuid, _Held())
                    held.listed.append(one)
                    held.processes.append(process)
        return found

    def _rest(
        self, watched: Iterable[Hashable], *, compared: set[Hashable], held: Iterable[Hashable], elapsed: float
    ) -> None:
        """Who has nothing on a card recovers; until then it is remembered, however often its processes are others."""
        for (key, _), record in self._records.items():
            if key not in compared:
                record.overtime = record.overtime.after(0, elapsed_seconds=elapsed)
        kept, here = set(watched), set(held)
        self._records = {
            (key, uuid): record
            for (key, uuid), record in self._records.items()
            if key in here or (key in kept and record.overtime.seconds)
        }

    def _compare(
        self, one: WatchedSlice, before: Usage | None, held: Mapping[str, _Held], now: float, elapsed: float
    ) -> Iterable[tuple[str, Finding, Overrun | None]]:
        after = UsageReader(one.usage).read_totals()
        try:
            lines = read_policy(one.policy).devices
        except (OSError, ElasticGPUError):
            return  # nothing is limited there, or it is just going away
        for position, line in enumerate(lines):
            holds = held.get(line.uuid, _Held())
            # It reserves before it holds and holds until it releases: the larger reading is the one that covers ours.
            counted = max(_counted(usage, position) for usage in (before or after, after))
            limit = _limit(line)
            record = self._record(one, line.uuid)
            record.allowed = max(
                allowed(limit=limit, before=record.allowed, counted=counted if one.session else 0),
                one.kept_bytes.get(line.uuid, 0),
            )
            uncounted, is_refused = record.look(holds.bytes, counted=counted, now=now, elapsed=elapsed)
            overhead = line.memory_limit_bytes if is_refused else -(-uncounted // STEP_BYTES) * STEP_BYTES
            try:
                amend_policy(one.policy, line.uuid, overhead_bytes=overhead)
            except (OSError, ElasticGPUError) as error:
                log.warning("a slice's overhead cannot be written", policy=str(one.policy), reason=str(error))
                continue
            overrun = None
            if record.is_to_be_ended(tuple(holds.processes), now):
                overrun = Overrun(one, line.uuid, holds.bytes, limit, tuple(holds.processes))
            finding = Finding(holds.bytes, counted, overhead, tuple(holds.listed), tuple(holds.processes))
            yield line.uuid, finding, overrun

    def _record(self, one: WatchedSlice, uuid: str) -> _Record:
        if (one.key, uuid) not in self._records:
            self._records[one.key, uuid] = _Record(one.granted_bytes.get(uuid, 0))
        return self._records[one.key, uuid]


def kill_holders(overrun: Overrun) -> tuple[int, ...]:
    """End those processes of a slice that hold memory of the card; returns the pids of those that were still there."""
    killed: list[int] = []
    for process in overrun.processes:
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(process.pid)
            try:
                if process.is_alive():  # asked with the process in our hands: the pid may be another's by now
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    killed.append(process.pid)
            finally:
                os.close(handle)
    return tuple(killed)


def _limit(line: DevicePolicy) -> int:
    """All that may be held."""
    return line.memory_limit_bytes + (0 if line.memory_limit_bytes == MEMORY_UNLIMITED else line.spill_limit_bytes)


def _counted(usage: Usage, position: int) -> int:
    if position >= len(usage.devices):
        return 0
    return usage.devices[position].memory_bytes + usage.devices[position].spill_bytes
