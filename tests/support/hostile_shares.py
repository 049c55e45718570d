"""Shares of a card's time among honest and hostile tenants, in virtual time: exact, whatever else this computer does.

The interposer's own control and the agent's (benchmarks/isolation_pace.c) on a card that runs kernels first come, first
served, or in slices of time. Honest tenants launch kernels without a pause; hostile ones longer ones and whole graphs,
stop and come back, and write anything into their usage files before each look of the agent.
"""

import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

from egpu.adapters.slices.pages import DevicePolicy, Mode, create_usage, write_policy
from egpu.api.allocation import CardShare
from egpu.apps.agent.limits.compute import BUSY_SECONDS, ComputeSharing
from egpu.apps.agent.slots.directories import Slots
from support.hostile_files import damage
from support.slices import NATIVE, SOURCES, compile_c, slot_record, uuid

POINTS = 3
"""How far from its share an honest tenant may be, in percent of the card."""
SETTLE_MS, END_MS, BUCKET_MS = 500, 2500, 10
LATE_MS = 2
HOSTILE_LAUNCHES = ((5000, 1), (20, 50), (500, 4), (100, 1))
"""Microseconds of a kernel, kernels of a launch. All from one process: docs/isolation.md says what several take."""


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


def build(directory: Path) -> Path:
    """The program that has a card, a clock and tenants of its own."""
    program = directory / "pace"
    parts = [NATIVE / "interposer" / name for name in ("bucket.c", "compute.c")]
    source = NATIVE.parent / "benchmarks" / "isolation_pace.c"
    compile_c(program, "-DEGPU_VIRTUAL_TIME", source, SOURCES / "pace_world.c", *parts, "-lm", flags=())
    return program


def _work(sharer: Sharer, kernel_us: int, chance: random.Random) -> str:
    """KERNEL_NS:KERNELS:PROCESSES:PAUSE_FROM_MS:PAUSE_TO_MS."""
    if not sharer.hostile:
        return f"{kernel_us * 1000}:1:1:0:0"
    kernel_us, kernels = chance.choice(HOSTILE_LAUNCHES)
    pause = chance.choice(("0:0", f"{chance.randrange(0, 1000)}:{chance.randrange(1000, END_MS)}"))
    return f"{kernel_us * 1000}:{kernels}:1:{pause}"


def shares(program: Path, directory: Path, sharers: list[Sharer], chance: random.Random) -> list[Got]:
    """What each tenant of one card has of it from SETTLE_MS to END_MS. `directory` is made."""
    now = 0.0
    slots, arguments, hostile = Slots(directory), list[str](), list[Path]()
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
        arguments.append(f"{place}:{_work(sharer, kernel_us, chance)}")
        if sharer.hostile:
            hostile.append(place / "usage")
    sharing = ComputeSharing(slots, clock=lambda: now)
    tick_ms = int(BUSY_SECONDS * 1000) + LATE_MS
    busy: list[list[int]] = []
    command = [program, chance.choice(("fifo", "timeslice")), str(END_MS), str(tick_ms), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for line in child.stdout:
            kind, *numbers = line.split()
            if kind == "busy":
                busy.append([int(number) for number in numbers])
                continue
            now = int(numbers[0]) / 1e9
            for usage in hostile:
                if chance.random() < 0.1:
                    damage(usage, chance)
            sharing.step()
            child.stdin.write("\n")
            child.stdin.flush()
    assert child.returncode == 0, command
    window = slice(SETTLE_MS // BUCKET_MS, END_MS // BUCKET_MS)
    whole_ns = (END_MS - SETTLE_MS) * 1_000_000
    return [Got(one, 100 * sum(ns[window]) / whole_ns) for one, ns in zip(sharers, busy, strict=True)]
