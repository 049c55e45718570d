"""Shares of a card's time among honest and hostile tenants, in virtual time: exact, whatever else this computer does.

The interposer's own control and the agent's (benchmarks/isolation_pace.c) on a card that runs kernels first come, first
served, or in slices of time. Honest tenants launch kernels without a pause; hostile ones longer ones and whole graphs,
stop and come back, and write anything into their usage files before each look of the agent.
"""

import random
from dataclasses import dataclass
from pathlib import Path

from egpu.adapters.slices.pages import DevicePolicy, Mode, create_usage, write_policy
from egpu.adapters.slices.sharing import BUSY_SECONDS
from egpu.api.allocation import CardShare
from egpu.apps.agent.limits.compute import ComputeSharing
from egpu.apps.agent.slots.directories import Slots
from support import pace
from support.hostile_files import damage
from support.slices import slot_record, uuid

POINTS = 3
"""How far from its share an honest tenant may be, in percent of the card."""
SETTLE_MS, END_MS = 500, 2500
HOSTILE_LAUNCHES = ((5000, 1), (20, 50), (500, 4), (100, 1))
"""Microseconds of a kernel, kernels of a launch. All from one process: docs/internals/isolation.md has several."""


@dataclass(frozen=True)
class Sharer:
    """A tenant of the card: its share in percent, and whether it keeps to it."""

    name: str
    core: int
    hostile: bool


@dataclass(frozen=True)
class Got:
    """Percent of the card's time."""

    sharer: Sharer
    percent: float

    @property
    def off_by(self) -> float:
        return self.percent - self.sharer.core


def _work(directory: Path, sharer: Sharer, kernel_us: int, chance: random.Random) -> pace.Work:
    if not sharer.hostile:
        return pace.Work(directory=directory, kernel_us=kernel_us)
    kernel_us, kernels = chance.choice(HOSTILE_LAUNCHES)
    pause_ms = chance.choice(((0, 0), (chance.randrange(0, 1000), chance.randrange(1000, END_MS))))
    return pace.Work(directory=directory, kernel_us=kernel_us, kernels=kernels, pause_ms=pause_ms)


def shares(program: Path, directory: Path, sharers: list[Sharer], chance: random.Random) -> list[Got]:
    """What each tenant of one card has of it from SETTLE_MS to END_MS. `directory` is made."""
    now = 0.0
    slots, works, hostile = Slots(directory), list[pace.Work](), list[Path]()
    kernel_us = chance.choice((20, 100, 500))
    for index, sharer in enumerate(sharers):
        share = CardShare(uuid=uuid("1"), index=0, minor=0, core=sharer.core, memory_mib=1024)
        record = slot_record(slots, str(index), share)
        slots.replace(record, lambda directory: None)
        place = slots.path(record.slot_id)
        line = DevicePolicy(
            uuid=uuid("1"), minor=0, mode=Mode.CAP, core_ppm=sharer.core * 10_000, memory_limit_bytes=1 << 30
        )
        write_policy(place / "policy", [line])
        create_usage(place / "usage")
        works.append(_work(place, sharer, kernel_us, chance))
        if sharer.hostile:
            hostile.append(place / "usage")
    sharing = ComputeSharing(slots, clock=lambda: now)

    def look(seconds: float) -> None:
        nonlocal now
        now = seconds
        for usage in hostile:
            if chance.random() < 0.1:
                damage(usage, chance)
        sharing.step()

    arbitration, tick_ms = chance.choice(("fifo", "timeslice")), int(BUSY_SECONDS * 1000) + pace.LATE_MS
    busy = pace.drive(program, works, arbitration=arbitration, end_ms=END_MS, tick_ms=tick_ms, look=look)
    return [Got(one, pace.mean(percents, SETTLE_MS, END_MS)) for one, percents in zip(sharers, busy, strict=True)]
