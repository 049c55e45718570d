"""Watch the use of cards' time by their slices, many times a second, and write new grants.

It reads only the first page of each usage file, and only to see which containers are active. A container that claims to
be busy gets no more than its share, and one that claims to be idle cannot be given less. A container with an
implausible account counts as active, so that its neighbours' windows do not depend on it.

When no card was used for a while, it is still. Then it only checks, in microseconds, whether an account moved, or a
slice came or went, and checks less often the longer it is still. The first container that wakes up needs no window, and
checks are as frequent as before from then on. A slice known to be without programs is skipped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from egpu.adapters.slices.long_kernels import LONG_NS, LongKernels, Seen, long_kernels
from egpu.adapters.slices.pages import (
    PPM,
    DevicePolicy,
    DeviceUsage,
    Mode,
    UsageReader,
    amend_policy,
    read_policy,
)
from egpu.adapters.slices.shares import Grant, Tenant, divide
from egpu.adapters.slices.turns import TurnArbiter, TurnSlice
from egpu.adapters.slices.work import Kind, Work
from egpu_base.errors import ElasticGPUError
from egpu_base.system.files import last_change

log = structlog.get_logger(__name__)

#: Between two looks while containers share a card, and while none does.
BUSY_SECONDS = 0.01
CALM_SECONDS = 0.5
#: Between two glances while all is still: at first; as a part of the time that it has been still; and at least as this
#: multiple of a glance's duration.
STILL_SECONDS = 0.04
STILL_PART = 0.02
REST = 40.0
#: It is still after this time without any work.
STILL_AFTER_SECONDS = 0.5
#: Slices come and go as slowly as containers; while all is still, their directories show changes.
RESCAN_SECONDS = 0.5
STILL_RESCAN_SECONDS = 10.0
#: A container is idle after this time without work.
IDLE_SECONDS = 0.03
#: A container with an unreadable or implausible account counts as active for this time: its writing must not move the
#: windows of others.
DOUBT_SECONDS = 10.0
#: Its kernels count as this long: in windows that are too short they would run into those of others.
DOUBTED_KERNEL_NS = 5_000_000
#: Latency work counts as present for this time after its last launch. Meanwhile the others on its card start kernels
#: one by one, which costs them processor time.
PRESENT_SECONDS = 60.0
#: Latency work that wants the card for this part of the time has windows, as batch work: turns are for work that waits
#: little, and would give it less than its share. It has turns again when it wants the card for the lesser part.
ALWAYS, NOT_ALWAYS = 0.85, 0.6
#: The time over which these parts are taken.
WANTED_OVER_SECONDS = 0.25
#: Long kernels of batch work are named for this time after its last launch.
NAMED_SECONDS = 5.0
#: Between two looks, at most. A late look, on a busy node, sees less.
MOST_GPU_NS, MOST_LAUNCHES = 10**10, 10**7


@dataclass(frozen=True)
class _Page:
    """A policy page, and the stamp of its last write."""

    written: int
    lines: tuple[DevicePolicy, ...]


@dataclass
class _Share:
    """One slice on one card."""

    policy: Path
    usage: Path
    reader: UsageReader
    position: int
    line: DevicePolicy
    ceiling_ppm: int
    unused: Callable[[], bool]
    key: Hashable = None
    content: bytes | str = b""
    last: DeviceUsage | None = None
    active_at: float = -1e9
    recent_launches: float = 0.0
    recent_gpu_ns: float = 0.0
    used_ppm: float = 0.0
    held_back: bool = False
    wanted: float = 0.0
    always: bool = False

    @property
    def latency(self) -> bool:
        """Whether it has turns, where others share its card."""
        return self.line.kind is Kind.LATENCY and not self.always

    @property
    def kernel_ns(self) -> int:
        """The mean length of its launches lately, by its own account."""
        return int(self.recent_gpu_ns / self.recent_launches) if self.recent_launches else 0

    def look(self, now: float, elapsed: float) -> None:
        """Read its processes' account of their work since the last look."""
        self.content = self.reader.content()
        usage = self.reader.read_totals(self.content)
        totals = usage.devices[self.position] if not usage.problem else None
        before, self.last = self.last, totals
        if totals is None or (before is not None and not _believable(before, totals)):
            if totals is not None or self.policy.exists():  # when both are gone, the slice was removed
                self.active_at = now + DOUBT_SECONDS
            return
        if before is None:
            return
        gpu_ns, throttled_ns = totals.gpu_ns - before.gpu_ns, totals.throttled_ns - before.throttled_ns
        launches = totals.launches - before.launches
        # A launch counts when it is over; a request to launch shows at once.
        if gpu_ns > 0 or throttled_ns > 0 or launches > 0 or totals.refilled_ns != before.refilled_ns:
            self.active_at = max(self.active_at, now)
        self.held_back = throttled_ns > 0
        wanted = min(1.0, max(0, gpu_ns + throttled_ns) / 1e9 / elapsed)
        self.wanted += -math.expm1(-elapsed / WANTED_OVER_SECONDS) * (wanted - self.wanted)
        # A long kernel runs over its window, at the others' expense. A turn waits until it is paid for.
        self.always = self.wanted > (NOT_ALWAYS if self.always else ALWAYS) and self.kernel_ns < LONG_NS
        if launches > 0 and gpu_ns > 0:
            self.recent_launches += 0.1 * (launches - self.recent_launches)
            self.recent_gpu_ns += 0.1 * (gpu_ns - self.recent_gpu_ns)
        self.used_ppm += 0.3 * (min(1.0, max(0.0, gpu_ns / 1e9 / elapsed)) * PPM - self.used_ppm)

    def has_moved(self) -> bool:
        """Return whether its account has changed since the last look."""
        return self.reader.content() != self.content

    def tenant(self, now: float) -> Tenant:
        wants = self.ceiling_ppm if self.held_back else min(self.ceiling_ppm, int(self.used_ppm * 1.3) + PPM // 20)
        kernel_ns = self.kernel_ns
        if self.active_at > now:  # in doubt
            kernel_ns = max(kernel_ns, DOUBTED_KERNEL_NS)
        return Tenant(
            core_ppm=self.line.core_ppm,
            ceiling_ppm=self.ceiling_ppm,
            weight=self.line.weight,
            active=now - self.active_at < IDLE_SECONDS,
            wants_ppm=wants,
            kernel_ns=kernel_ns,
            latency=self.latency,
        )

    def seen(self, now: float) -> Seen:
        latency = self.line.kind is Kind.LATENCY
        lately = PRESENT_SECONDS if latency else NAMED_SECONDS
        return Seen(self.key, latency, now - self.active_at < lately, self.kernel_ns)

    def turns(self) -> TurnSlice:
        return TurnSlice(self.policy, self.usage, self.position, self.line.core_ppm, self.latency)


def _believable(before: DeviceUsage, after: DeviceUsage) -> bool:
    """Return whether an account's change is plausible: counters only grow, by no more than a look can see."""
    return (
        0 <= after.gpu_ns - before.gpu_ns < MOST_GPU_NS
        and 0 <= after.launches - before.launches < MOST_LAUNCHES
        and after.throttled_ns >= before.throttled_ns
    )


@dataclass(frozen=True)
class TimeSlice:
    """A slice that takes part in sharing time. A different `key` means a different slice, even in the same place.
    `ceiling_ppm` limits its share with idle time, in mode `share`. `unused`: no program can work in it now, so it is
    not watched."""

    key: Hashable
    policy: Path
    usage: Path
    ceiling_ppm: int = PPM
    unused: Callable[[], bool] = lambda: False


class TimeSharing:
    """Keeps policy pages current with the active slices. `slices` lists the slices, again and again; `stamp` changes
    when some come or go."""

    def __init__(
        self,
        slices: Callable[[], Iterable[TimeSlice]],
        stamp: Callable[[], Hashable],
        *,
        clock: Callable[[], float] = time.monotonic,
        arbiter: TurnArbiter | None = None,
    ) -> None:
        """`arbiter`: gives out turns."""
        self._arbiter = arbiter or TurnArbiter()
        self._slices = slices
        self._stamp = stamp
        self._clock = clock
        self._shares: dict[tuple[Hashable, str], _Share] = {}
        self._shared: list[list[_Share]] = []
        self._pages: dict[Path, _Page] = {}
        self._scanned_at = -1e9
        self._scanned: Hashable = None
        self._looked_at = self._moved_at = clock()

    def is_still(self) -> bool:
        """Return whether no work was done for a while, by a glance that does not block. After that, the slices are read
        again."""
        now = self._clock()
        shares = [share for each in self._shared for share in each]
        if any(now - share.active_at < STILL_AFTER_SECONDS for share in shares):
            self._moved_at = now
            return False
        if any(share.has_moved() for share in shares if not share.unused()):
            self._moved_at, self._scanned_at = now, -1e9
            return False
        since = now - self._scanned_at
        if since >= RESCAN_SECONDS and self._stamp() != self._scanned:
            self._moved_at = now
            return False
        if since >= STILL_RESCAN_SECONDS:
            return False
        self._looked_at = now
        return True

    def step(self) -> float:
        """Look once and write changes; return the seconds until the next look."""
        now = self._clock()
        if now - self._scanned_at >= RESCAN_SECONDS:
            self._scan()
            self._scanned_at = now
        elapsed, self._looked_at = max(now - self._looked_at, 1e-3), now
        for shares in self._shared:
            for share in shares:
                if share.last is None or not share.unused():
                    share.look(now, elapsed)
        turning = [shares for shares in self._shared if _has_turns(shares, now)]
        arbitrated = self._arbiter.follow([[share.turns() for share in shares] for shares in turning])
        for shares in self._shared:
            turns = arbitrated and shares in turning
            tenants = [share.tenant(now) for share in shares]
            grants = divide(tenants if turns else [replace(one, latency=False) for one in tenants])
            for share, grant in zip(shares, grants, strict=True):
                _write(share, grant, _work(share) if turns else Work.PLAIN)
        return BUSY_SECONDS if self._shared else CALM_SECONDS

    def pause(self) -> float | None:
        """Return the seconds until the next glance, or None if `step` is due now."""
        began = time.thread_time()
        if not self.is_still():
            return None
        still_seconds = STILL_PART * (self._clock() - self._moved_at) if self._shared else CALM_SECONDS
        return max(min(max(STILL_SECONDS, still_seconds), CALM_SECONDS), REST * (time.thread_time() - began))

    def next(self) -> float:
        """Do what is due; return the seconds until the next call."""
        pause_seconds = self.pause()
        return self.step() if pause_seconds is None else pause_seconds

    def rest(self) -> None:
        """Give out no turns: another process shares the cards' time."""
        self._arbiter.close()

    def demand(self) -> dict[str, float]:
        """Return per card UUID the recently used parts of its time, added over its slices (1 is all of it)."""
        found: dict[str, float] = {}
        for share in self._shares.values():
            found[share.line.uuid] = found.get(share.line.uuid, 0.0) + share.used_ppm / PPM
        return found

    def long_kernels(self) -> list[LongKernels]:
        """Return the slices of batch work whose kernels delay latency work now."""
        now = self._clock()
        cards = [shares for shares in self._shared if _has_turns(shares, now)]
        return [
            found for shares in cards for found in long_kernels(shares[0].line.uuid, [one.seen(now) for one in shares])
        ]

    def _page(self, policy: Path) -> _Page:
        """Return the page, read again only after a write: for many slices, reading takes longer than all the rest."""
        written = last_change(policy)
        known = self._pages.get(policy)
        if known is not None and known.written == written:
            return known
        try:
            return _Page(written, read_policy(policy).devices)
        except (OSError, ElasticGPUError):
            return _Page(written, ())  # it has no limits, or is being removed

    def _scan(self) -> None:
        self._scanned = self._stamp()  # first: a change meanwhile gives another one
        found: dict[tuple[Hashable, str], _Share] = {}
        pages: dict[Path, _Page] = {}
        for one in self._slices():
            page = pages[one.policy] = self._page(one.policy)
            for position, line in enumerate(page.lines):
                if line.mode is Mode.UNLIMITED:
                    continue
                key = (one.key, line.uuid)
                share = self._shares.get(key)
                if share is None or share.policy != one.policy:  # of several slots with it, another remains
                    reader = UsageReader(one.usage, devices=position + 1)
                    share = _Share(one.policy, one.usage, reader, position, line, 0, one.unused, one.key)
                share.line = line  # other processes may have written it meanwhile
                share.ceiling_ppm = max(line.core_ppm, one.ceiling_ppm) if line.mode is Mode.SHARE else line.core_ppm
                found[key] = share
        self._shares, self._pages = found, pages
        cards: dict[str, list[_Share]] = {}
        for share in found.values():
            cards.setdefault(share.line.uuid, []).append(share)
        self._shared = [each for each in cards.values() if _is_shared(each)]


def _is_shared(shares: list[_Share]) -> bool:
    """Return whether a card needs decisions: not if a slice is alone and never above its share."""
    first = shares[0].line
    return len(shares) > 1 or first.mode is Mode.SHARE or first.window is not None


def _has_turns(shares: list[_Share], now: float) -> bool:
    """Return whether latency work that was there lately shares the card."""
    return len(shares) > 1 and any(share.latency and now - share.active_at < PRESENT_SECONDS for share in shares)


def _work(share: _Share) -> Work:
    return Work.LATENCY if share.latency else Work.YIELDING


def _write(share: _Share, grant: Grant, work: Work) -> None:
    before = share.line
    if ((before.grant_ppm or before.core_ppm), before.window, before.work) == (grant.ppm, grant.window, work):
        return  # also without a written one: then its own share is its grant
    line = replace(before, grant_ppm=grant.ppm, window=grant.window, work=work)
    try:
        amend_policy(share.policy, share.line.uuid, grant_ppm=grant.ppm, window=grant.window, work=work)
    except (OSError, ElasticGPUError) as error:
        log.warning("cannot write a slice's grant", policy=str(share.policy), reason=str(error))
        return
    share.line = line
