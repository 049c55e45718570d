"""Compares what slices count with what the driver says that they hold: charges the larger, and says who stays over.

Contexts and code that is loaded late take memory that nobody in the process can count, and a program may get at memory
behind the interposer's back. What the driver sees beyond the count becomes `overhead_bytes` of the slice's policy page,
which is taken off what may still be allocated. What it sees beyond the *limit* is an overrun: then every allocation is
refused, whatever is counted, and a slice that stays over is to be ended. The driver alone decides on that; what a
container writes into its usage file neither causes an overrun nor hides one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import structlog

from egpu.adapters.nvml import CardProcess
from egpu.adapters.slices import membership
from egpu.adapters.slices.pages import MEMORY_UNLIMITED, DevicePolicy, Usage, UsageReader, amend_policy, read_policy
from egpu.errors import ElasticGPUError

log = structlog.get_logger(__name__)

INTERVAL_SECONDS: Final = 0.25
#: The driver and the usage file cannot be read at one moment: what is seen once may be an allocation under way.
LOOKS: Final = 3
#: The page is not written anew for less than this.
STEP_BYTES: Final = 1024 * 1024
#: Beyond a limit that was used up before they came, contexts may stay: nobody is ended for this much.
CONTEXT_BYTES: Final = 512 * 1024 * 1024
#: So long a slice may be over its limit, and not more than half of a longer time; then it is to be ended.
OVERRUN_SECONDS: Final = 5.0
_MIB: Final = 1024 * 1024


class ProcessSource(Protocol):
    """Says which processes hold how much of each card, by the card's UUID; blocks. Raises ElasticGPUError."""

    def processes(self) -> Mapping[str, tuple[CardProcess, ...]]: ...


@dataclass(frozen=True, kw_only=True)
class WatchedSlice:
    """A slice as it is watched. `session`: of an executor, whose session (setsid) its processes are and cannot leave;
    then what they count is our own word, and what they held when a limit was lowered is no overrun. 0: its processes
    are those that have its policy page mapped, or see it at `page` (absolute, in their own file system). `had`: by
    card, what it was allowed before its limit was lowered, and may keep until it is to give it back."""

    key: Hashable
    policy: Path
    usage: Path
    session: int = 0
    page: str = ""
    had: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def seen_at(self) -> str:
        """Where its page may be in a process: a path, or the name alone of the mapped file."""
        return self.page or self.policy.name


@dataclass(frozen=True)
class Finding:
    """One slice on one card. `overhead_bytes` is what its policy page says now."""

    driver_bytes: int
    counted_bytes: int
    overhead_bytes: int
    processes: tuple[CardProcess, ...]


@dataclass(frozen=True)
class Overrun:
    """A slice that was over its limit for too long."""

    slice: WatchedSlice
    uuid: str
    driver_bytes: int
    limit_bytes: int
    seconds: float
    processes: tuple[CardProcess, ...]

    def __str__(self) -> str:
        return (
            f"it holds {-(-self.driver_bytes // _MIB)} MiB of card {self.uuid} by the driver, may hold "
            f"{self.limit_bytes // _MIB} MiB, and was over that for {self.seconds:.0f} s"
        )


@dataclass
class _Record:
    """What is remembered of one slice on one card."""

    uncounted: deque[int] = field(default_factory=lambda: deque[int](maxlen=LOOKS))
    excess: deque[int] = field(default_factory=lambda: deque[int](maxlen=LOOKS))
    over_seconds: float = 0.0

    def look(self, *, uncounted: int, excess: int, elapsed: float) -> None:
        self.uncounted.append(max(0, uncounted))
        self.excess.append(max(0, excess))
        over = _lasting(self.excess) > CONTEXT_BYTES
        self.over_seconds = max(0.0, self.over_seconds + (elapsed if over else -elapsed))


def _lasting(seen: deque[int]) -> int:
    """What was there at every one of the last looks."""
    return min(seen) if len(seen) == LOOKS else 0


class MemoryWatch:
    """Keeps `overhead_bytes` of policy pages true. `findings` is the last comparison, by slice key and card UUID."""

    def __init__(self, source: ProcessSource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._looked_at = clock()
        self._records: dict[tuple[Hashable, str], _Record] = {}
        self._quiet: set[Hashable] = set()
        """Slices without processes on a card, whose pages say so."""
        self._told = ""
        self.findings: Mapping[tuple[Hashable, str], Finding] = {}

    def step(self, slices: Iterable[WatchedSlice]) -> tuple[Overrun, ...]:
        """Compare once; returns those who are to be ended. Without an answer of the driver all stays as it is."""
        now = self._clock()
        elapsed, self._looked_at = now - self._looked_at, now
        watched = {one.key: one for one in slices}
        self._quiet &= watched.keys()
        before = {key: UsageReader(one.usage).read_totals() for key, one in watched.items() if key not in self._quiet}
        processes = self._processes() if watched else dict[str, tuple[CardProcess, ...]]()
        if processes is None:
            return ()
        held = _attribute(processes, watched.values())
        findings: dict[tuple[Hashable, str], Finding] = {}
        overruns: list[Overrun] = []
        for key in {*before, *held}:
            for uuid, finding, overrun in self._compare(watched[key], before.get(key), held.get(key, {}), elapsed):
                findings[key, uuid] = finding
                overruns += [] if overrun is None else [overrun]
        self._quiet = watched.keys() - held.keys()
        self._records = {key: record for key, record in self._records.items() if key[0] in held}
        self.findings = {key: one for key, one in self.findings.items() if key[0] in self._quiet} | findings
        return tuple(overruns)

    def _processes(self) -> Mapping[str, tuple[CardProcess, ...]] | None:
        try:
            found = self._source.processes()
        except ElasticGPUError as error:
            if str(error) != self._told:
                log.warning("what processes hold cannot be compared with what they count", reason=str(error))
            self._told = str(error)
            return None
        self._told = ""
        return found

    def _compare(
        self, one: WatchedSlice, before: Usage | None, held: Mapping[str, list[CardProcess]], elapsed: float
    ) -> Iterable[tuple[str, Finding, Overrun | None]]:
        after = UsageReader(one.usage).read_totals()
        try:
            lines = read_policy(one.policy).devices
        except (OSError, ElasticGPUError):
            return  # nothing is limited there, or it is just going away
        for position, line in enumerate(lines):
            processes = tuple(held.get(line.uuid, ()))
            driver_bytes = sum(process.used_bytes for process in processes)
            # It reserves before it holds and holds until it releases: the larger reading is the one that covers ours.
            counted = max(_counted(usage, position) for usage in (before or after, after))
            limit = _limit(line)
            allowed = max(limit, counted if one.session else one.had.get(line.uuid, 0))
            record = self._records.setdefault((one.key, line.uuid), _Record())
            record.look(uncounted=driver_bytes - counted, excess=driver_bytes - allowed, elapsed=elapsed)
            overhead = -(-_lasting(record.uncounted) // STEP_BYTES) * STEP_BYTES
            if _lasting(record.excess):
                overhead = line.memory_limit_bytes  # nothing is left, whatever it counts
            try:
                amend_policy(one.policy, line.uuid, overhead_bytes=overhead)
            except (OSError, ElasticGPUError) as error:
                log.warning("a slice's overhead cannot be written", policy=str(one.policy), reason=str(error))
                continue
            overrun = None
            if record.over_seconds >= OVERRUN_SECONDS:
                overrun = Overrun(one, line.uuid, driver_bytes, limit, record.over_seconds, processes)
            yield line.uuid, Finding(driver_bytes, counted, overhead, processes), overrun


def kill_holders(overrun: Overrun) -> tuple[int, ...]:
    """End those processes of a slice that hold memory of the card; returns their pids."""
    killed: list[int] = []
    for process in overrun.processes:
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(process.pid)
            try:
                # Asked again with the process in our hands: the pid may be another's by now.
                if _belongs(process.pid, overrun.slice):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    killed.append(process.pid)
            finally:
                os.close(handle)
    return tuple(killed)


def _belongs(pid: int, one: WatchedSlice) -> bool:
    if one.session:
        return _session_of(pid) == one.session
    return membership.identity(one.policy) in membership.pages_of(pid, one.seen_at)


def _attribute(
    processes: Mapping[str, tuple[CardProcess, ...]], slices: Iterable[WatchedSlice]
) -> dict[Hashable, dict[str, list[CardProcess]]]:
    """Whose each process is, by slice key and card UUID; strangers are left out."""
    found: dict[Hashable, dict[str, list[CardProcess]]] = {}
    if not any(processes.values()):
        return found
    by_session = {one.session: one for one in slices if one.session}
    by_page = {membership.identity(one.policy): one for one in slices if not one.session}
    pages = {one.seen_at for one in by_page.values()}
    for uuid, listed in processes.items():
        for process in listed:
            owner = by_session.get(_session_of(process.pid))
            seen = {each for page in pages for each in membership.pages_of(process.pid, page)} if owner is None else ()
            owner = next((by_page[each] for each in seen if each in by_page), owner)
            if owner is not None:
                found.setdefault(owner.key, {}).setdefault(uuid, []).append(process)
    return found


def _session_of(pid: int) -> int:
    """0 when it is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _limit(line: DevicePolicy) -> int:
    """All that may be held."""
    return line.memory_limit_bytes + (0 if line.memory_limit_bytes == MEMORY_UNLIMITED else line.spill_limit_bytes)


def _counted(usage: Usage, position: int) -> int:
    if position >= len(usage.devices):
        return 0
    return usage.devices[position].memory_bytes + usage.devices[position].spill_bytes
