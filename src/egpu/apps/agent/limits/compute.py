"""Looks at what the containers of this node do with their cards' time, many times a second, and writes new grants.

It reads only the first page of each usage file and believes it for one thing only: who is active. A container that
claims to be busy gets no more than its share, and one that claims to be idle cannot be given less. One whose account
cannot be believed counts as active, so that its neighbours' windows do not move with what it writes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from egpu.adapters.slices.pages import PPM, DevicePolicy, DeviceUsage, Mode, UsageReader, amend_policy, read_policy
from egpu.apps.agent.limits.shares import Grant, Tenant, divide
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.errors import ElasticGPUError

log = structlog.get_logger(__name__)

#: Between two looks while containers share a card, and while none does.
BUSY_SECONDS = 0.01
CALM_SECONDS = 0.5
#: Slots come and go at the pace of containers.
RESCAN_SECONDS = 0.5
#: Idle is who did nothing for so long.
IDLE_SECONDS = 0.03
#: For so long a container counts as active whose account cannot be read or believed: what it writes there is to move
#: nobody else's window.
DOUBT_SECONDS = 10.0
#: And its kernels count as this long: with windows that are too short for them they would run into those of others.
DOUBTED_KERNEL_NS = 5_000_000
#: Between two looks, at the most. A look that comes late, on a busy node, still sees less.
MOST_GPU_NS, MOST_LAUNCHES = 10**10, 10**7


@dataclass
class _Share:
    """One container on one card."""

    policy: Path
    reader: UsageReader
    position: int
    line: DevicePolicy
    ceiling_ppm: int
    last: DeviceUsage | None = None
    active_at: float = -1e9
    recent_launches: float = 0.0
    recent_gpu_ns: float = 0.0
    used_ppm: float = 0.0
    held_back: bool = False

    def look(self, now: float, elapsed: float) -> None:
        """Take in what the container says it did since the last look."""
        usage = self.reader.read_totals()
        totals = usage.devices[self.position] if not usage.problem else None
        before, self.last = self.last, totals
        if totals is None or (before is not None and not _believable(before, totals)):
            self.active_at = now + DOUBT_SECONDS
            return
        if before is None:
            return
        gpu_ns, throttled_ns = totals.gpu_ns - before.gpu_ns, totals.throttled_ns - before.throttled_ns
        launches = totals.launches - before.launches
        # What was launched is counted when it is over; that somebody asked is seen at once.
        if gpu_ns > 0 or throttled_ns > 0 or launches > 0 or totals.refilled_ns != before.refilled_ns:
            self.active_at = max(self.active_at, now)
        self.held_back = throttled_ns > 0
        if launches > 0 and gpu_ns > 0:
            self.recent_launches += 0.1 * (launches - self.recent_launches)
            self.recent_gpu_ns += 0.1 * (gpu_ns - self.recent_gpu_ns)
        self.used_ppm += 0.3 * (min(1.0, max(0.0, gpu_ns / 1e9 / elapsed)) * PPM - self.used_ppm)

    def tenant(self, now: float) -> Tenant:
        wants = self.ceiling_ppm if self.held_back else min(self.ceiling_ppm, int(self.used_ppm * 1.3) + PPM // 20)
        kernel_ns = int(self.recent_gpu_ns / self.recent_launches) if self.recent_launches else 0
        if self.active_at > now:  # in doubt
            kernel_ns = max(kernel_ns, DOUBTED_KERNEL_NS)
        return Tenant(
            core_ppm=self.line.core_ppm,
            ceiling_ppm=self.ceiling_ppm,
            weight=self.line.weight,
            active=now - self.active_at < IDLE_SECONDS,
            wants_ppm=wants,
            kernel_ns=kernel_ns,
        )


def _believable(before: DeviceUsage, after: DeviceUsage) -> bool:
    """Whether an account went on as accounts do: counters only grow, and by no more than a look can see."""
    return (
        0 <= after.gpu_ns - before.gpu_ns < MOST_GPU_NS
        and 0 <= after.launches - before.launches < MOST_LAUNCHES
        and after.throttled_ns >= before.throttled_ns
    )


def _size(line: DevicePolicy) -> tuple[Mode, int, int]:
    return line.mode, line.core_ppm, line.weight


class ComputeSharing:
    """Keeps the policy pages of one node's slots up to date with who is active."""

    def __init__(
        self,
        slots: Slots,
        *,
        busy_seconds: float = BUSY_SECONDS,
        calm_seconds: float = CALM_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = slots
        self._clock = clock
        self._busy_seconds = busy_seconds
        self._calm_seconds = calm_seconds
        self._shares: dict[tuple[str, int, str], _Share] = {}
        self._scanned_at = -1e9
        self._looked_at = clock()

    async def run(self) -> None:
        while True:
            contended = await asyncio.to_thread(self.step)
            await asyncio.sleep(self._busy_seconds if contended else self._calm_seconds)

    def step(self) -> bool:
        """Look once and write what changed; returns whether anybody shares a card."""
        now = self._clock()
        if now - self._scanned_at >= RESCAN_SECONDS:
            self._scan()
            self._scanned_at = now
        elapsed, self._looked_at = max(now - self._looked_at, 1e-3), now
        cards: dict[str, list[_Share]] = {}
        for share in self._shares.values():
            cards.setdefault(share.line.uuid, []).append(share)
        # Alone on its card and never above its share: there is nothing to decide.
        shared = [each for each in cards.values() if len(each) > 1 or each[0].line.mode is Mode.SHARE]
        for shares in shared:
            for share in shares:
                share.look(now, elapsed)
            grants = divide([share.tenant(now) for share in shares])
            for share, grant in zip(shares, grants, strict=True):
                self._write(share, grant)
        return bool(shared)

    def demand(self) -> dict[str, float]:
        """Per card UUID, the parts of its time that its containers used lately, added up (1 is all of it)."""
        found: dict[str, float] = {}
        for share in self._shares.values():
            found[share.line.uuid] = found.get(share.line.uuid, 0.0) + share.used_ppm / PPM
        return found

    def _scan(self) -> None:
        found: dict[tuple[str, int, str], _Share] = {}
        for record in self._slots.records():
            try:
                lines = read_policy(self._slots.policy_file(record.slot_id)).devices
            except (OSError, ElasticGPUError):
                continue  # nothing is limited there, or it is just going away
            for position, line in enumerate(lines):
                if line.mode is Mode.UNLIMITED:
                    continue
                key = (record.slot_id, record.generation, line.uuid)
                known = self._shares.get(key)
                # One that was resized is another share, with another ceiling.
                same = known is not None and _size(known.line) == _size(line)
                found[key] = known if known is not None and same else self._share(record, position, line)
        self._shares = found

    def _share(self, record: SlotRecord, position: int, line: DevicePolicy) -> _Share:
        ceiling = line.core_ppm
        if line.mode is Mode.SHARE:
            ceiling = max(ceiling, min(record.allocation.core_limit, 100) * PPM // 100)
        reader = UsageReader(self._slots.usage_file(record.slot_id))
        return _Share(self._slots.policy_file(record.slot_id), reader, position, line, ceiling)

    def _write(self, share: _Share, grant: Grant) -> None:
        line = replace(share.line, grant_ppm=grant.ppm, window=grant.window)
        if line == share.line:
            return
        try:
            amend_policy(share.policy, share.line.uuid, grant_ppm=grant.ppm, window=grant.window)
        except (OSError, ElasticGPUError) as error:
            log.warning("a container's grant cannot be written", policy=str(share.policy), reason=str(error))
            return
        share.line = line
