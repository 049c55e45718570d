"""Compare slices' accounts with the driver's: charge the larger, and report slices that stay over their limits.

Contexts and late-loaded code take memory that no process can count, and a program may bypass the interposer. The
driver's excess over the count becomes `overhead_bytes` of the slice's policy page, which lowers the memory that it may
still allocate. An excess over the *limit* is an overrun: then every allocation is refused, whatever the count, and a
slice that stays over is to be ended (`egpu.core.overruns` decides when). The driver alone decides that; a container's
usage file neither causes an overrun nor hides one.

How often: every INTERVAL_SECONDS, while a slice uses a card. Then the used memory of the cards, a cheap question, is
read every ALERT_SECONDS. As soon as it moves by much, or while a slice is over its limit, the driver is asked for every
process at once. While no slice uses a card, the driver is asked when any memory moves, which is checked every
INTERVAL_SECONDS, or every IDLE_SECONDS.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from egpu.adapters.cards.nvml import CardProcess
from egpu.adapters.slices.attribution import Attribution, WatchedSlice
from egpu.adapters.slices.pages import (
    MEMORY_UNLIMITED,
    USAGE_SIZE,
    DevicePolicy,
    Usage,
    UsageReader,
    amend_policy,
    read_policy,
)
from egpu.adapters.slices.parked import parked_bytes
from egpu.core.overruns import Lasting, Overtime, allowed, weight
from egpu_base.errors import ElasticGPUError
from egpu_base.system.processes import Process

log = structlog.get_logger(__name__)

INTERVAL_SECONDS: Final = 0.25
ALERT_SECONDS: Final = 0.05
IDLE_SECONDS: Final = 2.0
BEHIND_SECONDS: Final = 0.001
"""The pause after a look that had no time for all mappings."""
MOVED_BYTES: Final = 64 * 1024 * 1024
"""The change of a card's used memory after which its processes are read out of turn."""
UNCOUNTED_SECONDS: Final = 0.5
"""The time before an excess over the count is charged: a module is counted once it is loaded."""
REFUSED_SECONDS: Final = 0.1
"""The time before an excess over the limit makes every allocation fail."""
END_SECONDS: Final = 1.0
"""The time that a slice has to end before it is reported again."""
#: The page is not rewritten for a smaller change.
STEP_BYTES: Final = 1024 * 1024
_MIB: Final = 1024 * 1024
_chance: Final = random.SystemRandom()


class ProcessSource(Protocol):
    """The driver's account of each card, by its UUID; blocks. Both raise ElasticGPUError."""

    def processes(self) -> Mapping[str, tuple[CardProcess, ...]]:
        """Return the processes and the memory of each."""
        ...

    def used_bytes(self) -> Mapping[str, int]:
        """Return the memory in use."""
        ...


@dataclass(frozen=True)
class Finding:
    """One slice on one card. `overhead_bytes` is the present value of its policy page. `holders` are `processes` as
    they were recognised, so that no later one with the same pid is mistaken for them."""

    driver_bytes: int
    counted_bytes: int
    overhead_bytes: int
    processes: tuple[CardProcess, ...]
    holders: tuple[Process, ...] = ()


@dataclass(frozen=True)
class Overrun:
    """A slice that was over its limit for too long, and the processes that hold its memory."""

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
    """The memory of one card that one slice holds, by the driver."""

    listed: list[CardProcess] = field(default_factory=list[CardProcess])
    processes: list[Process] = field(default_factory=list[Process])

    @property
    def bytes(self) -> int:
        return sum(process.used_bytes for process in self.listed)


class _Record:
    """The state of one slice on one card. `allowed` is the memory that it may hold, lowered limits included."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.excess = 0
        self.overtime = Overtime()
        self._lasting_uncounted = Lasting(UNCOUNTED_SECONDS)
        self._lasting_excess = Lasting(REFUSED_SECONDS)
        self._told: tuple[Process, ...] = ()
        self._told_at = 0.0

    def look(self, held: int, *, counted: int, now: float, elapsed: float) -> tuple[int, bool]:
        """Take in that it holds so many bytes. Return the bytes to charge beyond the count, and whether to refuse all
        allocations."""
        self.excess = held - self.allowed
        self.overtime = self.overtime.after(self.excess, elapsed_seconds=elapsed)
        uncounted = self._lasting_uncounted.see(held - min(counted, self.allowed), now=now)
        return uncounted, self._lasting_excess.see(self.excess, now=now) > 0

    def is_to_be_ended(self, processes: tuple[Process, ...], now: float) -> bool:
        """Return whether to report these processes as due to end: again only other ones, or after a while."""
        if not self.overtime.is_full or weight(self.excess) < 0:
            return False
        if processes == self._told and now - self._told_at < END_SECONDS:
            return False
        self._told, self._told_at = processes, now
        return True


class MemoryWatch:
    """Keeps `overhead_bytes` of policy pages current. `findings` is the last comparison, by slice key and card UUID.

    Its owner calls `step` when `is_due`, and asks that again after `pause_seconds`.
    """

    def __init__(
        self,
        source: ProcessSource,
        *,
        clock: Callable[[], float] = time.monotonic,
        attribution: Attribution | None = None,
    ) -> None:
        self._source = source
        self._clock = clock
        self._looked_at = clock()
        self._used: Mapping[str, int] = {}
        self._attribution = Attribution() if attribution is None else attribution
        self._records: dict[tuple[Hashable, str], _Record] = {}
        self._quiet: set[Hashable] = set()
        """Slices without processes on a card, whose pages say so."""
        self._is_busy = False
        self._rests_at: Hashable = None
        self._told = ""
        self.findings: Mapping[tuple[Hashable, str], Finding] = {}

    @property
    def pause_seconds(self) -> float:
        """Return seconds, different each time while something runs, so that nothing can predict them."""
        if self._attribution.is_behind:
            return BEHIND_SECONDS
        return ALERT_SECONDS * _chance.uniform(0.5, 1.0) if self._is_busy else INTERVAL_SECONDS

    def is_due(self) -> bool:
        """Return whether to look: it is time, the last look did not read everything, a slice was over its limit just
        now, or the used memory of a card has moved (by much, or at all while nothing runs)."""
        if self._attribution.is_behind:
            return True
        if self._clock() - self._looked_at >= (INTERVAL_SECONDS if self._is_busy else IDLE_SECONDS):
            return True
        if any(record.excess > 0 or record.overtime.seconds for record in self._records.values()):
            return True
        try:
            used = self._source.used_bytes()
        except ElasticGPUError:
            return False  # the next regular look reports the reason
        least = MOVED_BYTES if self._is_busy else 1
        return any(abs(found - self._used.get(uuid, 0)) >= least for uuid, found in used.items())

    def step(self, slices: Iterable[WatchedSlice], stamp: Hashable = None) -> tuple[Overrun, ...]:
        """Compare once; return the overruns that are due to end. Without an answer of the driver nothing changes.

        `stamp` changes when slices come or go. While it is the same, and no process is on any card, slices are not
        listed.
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
                log.warning("cannot compare slices' memory with the driver's", reason=str(error))
            self._told = str(error)
            return None
        self._told, self._used = "", used
        return found

    def _attribute(
        self, processes: Mapping[str, tuple[CardProcess, ...]], watched: Mapping[Hashable, WatchedSlice], now: float
    ) -> dict[Hashable, dict[str, _Held]]:
        """Return the memory that each slice holds, by its key and the card's UUID."""
        # The largest first: mappings that this look has no time for are those of small ones.
        largest = sorted((one for listed in processes.values() for one in listed), key=lambda one: -one.used_bytes)
        pids = dict.fromkeys(one.pid for one in largest)
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
        """Let slices without memory on a card recover; until then they are remembered, whatever their processes."""
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
            policy = read_policy(one.policy)
        except (OSError, ElasticGPUError):
            return  # it has no limits, or is being removed
        parked = Counter[int]() if policy.parking is None else parked_bytes(UsageReader(one.usage).content(USAGE_SIZE))
        for position, line in enumerate(policy.devices):
            holds = held.get(line.uuid, _Held())
            # A process reserves before it holds, and holds until it releases: the larger reading covers ours.
            counted = max(_counted(usage, position) for usage in (before or after, after))
            limit = _limit(line)
            record = self._record(one, line.uuid)
            record.allowed = max(
                allowed(limit=limit, before=record.allowed, counted=counted if one.session else 0),
                one.kept_bytes.get(line.uuid, 0),
            )
            # What it says is parked it does not hold: more than the rest is not counted.
            resident = max(0, counted - parked[position])
            uncounted, is_refused = record.look(holds.bytes, counted=resident, now=now, elapsed=elapsed)
            overhead = line.memory_limit_bytes if is_refused else -(-uncounted // STEP_BYTES) * STEP_BYTES
            try:
                amend_policy(one.policy, line.uuid, overhead_bytes=overhead)
            except (OSError, ElasticGPUError) as error:
                log.warning("cannot write a slice's overhead", policy=str(one.policy), reason=str(error))
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


def end_processes(processes: Iterable[Process]) -> tuple[int, ...]:
    """End processes that hold memory of a card; return the pids of those that were alive."""
    killed: list[int] = []
    for process in processes:
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(process.pid)
            try:
                if process.is_alive():  # checked while we hold the process: its pid may be reused
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    killed.append(process.pid)
            finally:
                os.close(handle)
    return tuple(killed)


def _limit(line: DevicePolicy) -> int:
    """Return all memory that may be held."""
    return line.memory_limit_bytes + (0 if line.memory_limit_bytes == MEMORY_UNLIMITED else line.spill_limit_bytes)


def _counted(usage: Usage, position: int) -> int:
    if position >= len(usage.devices):
        return 0
    return usage.devices[position].memory_bytes + usage.devices[position].spill_bytes
