"""Guarantees hold for every mix of latency and batch work: the interposer's control, the arbiter's rule and the agent's
sharing together, in virtual time (benchmarks/isolation_pace.c)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from egpu.adapters.slices.pages import DevicePolicy, Mode, create_usage, read_policy, write_policy
from egpu.adapters.slices.sharing import BUSY_SECONDS, TimeSharing, TimeSlice
from egpu.adapters.slices.turns import TurnArbiter, TurnSlice
from egpu.adapters.slices.work import Kind, Work
from support import pace
from support.long import or_long
from support.slices import uuid

END_MS = 4500
WARM_MS = 1500
JUDGED_MS = 2000
POINTS = 3.0
TICK_MS = int(BUSY_SECONDS * 1000) + pace.LATE_MS
KERNELS_US = (50, 200, 1000, 5000)


class Tenant(NamedTuple):
    """A slice of `core` percent whose program always has work."""

    core: int
    kind: Kind
    kernel_us: int


class _ArbiterOfTheWorld(TurnArbiter):
    """The world in virtual time has its own."""

    def follow(self, cards: Sequence[Sequence[TurnSlice]]) -> bool:
        return bool(cards)


def mix(seed: int) -> list[Tenant]:
    """Two to four slices that fill the card, at random."""
    chance = random.Random(seed)
    cuts = sorted(chance.sample(range(1, 20), chance.randint(1, 3)))
    cores = [5 * (end - start) for start, end in zip([0, *cuts], [*cuts, 20], strict=True)]
    return [Tenant(one, chance.choice((Kind.LATENCY, Kind.BATCH)), chance.choice(KERNELS_US)) for one in cores]


SEEDS = range(or_long(5, 60))
MIXES = [
    [Tenant(50, Kind.LATENCY, 5000), Tenant(50, Kind.BATCH, 200)],
    [Tenant(15, Kind.LATENCY, 1000), Tenant(85, Kind.LATENCY, 1000)],
    *map(mix, SEEDS),
]


class World:
    """A card in virtual time with these tenants."""

    def __init__(self, directory: Path, tenants: Sequence[Tenant]) -> None:
        self.works: list[pace.Work] = []
        self.slices: list[TimeSlice] = []
        self.history: list[list[Work]] = []
        """The part of each slice in turns, after each look."""
        self.now = 0.0
        for number, (core, kind, kernel_us) in enumerate(tenants):
            place = directory / f"slice-{number}"
            place.mkdir(parents=True)
            line = DevicePolicy(
                uuid=uuid("1"), minor=0, mode=Mode.SHARE, core_ppm=core * 10_000, memory_limit_bytes=1 << 30,
                weight=core, kind=kind,
            )  # fmt: skip
            write_policy(place / "policy", [line])
            create_usage(place / "usage")
            self.works.append(pace.Work(directory=place, kernel_us=kernel_us))
            self.slices.append(TimeSlice(number, place / "policy", place / "usage"))
        self.sharing = TimeSharing(lambda: self.slices, lambda: 0, clock=lambda: self.now, arbiter=_ArbiterOfTheWorld())

    def look(self, seconds: float) -> None:
        self.now = seconds
        self.sharing.step()
        self.history.append([read_policy(one.policy).devices[0].work for one in self.slices])

    def run(self, program: Path, arbitration: str) -> list[list[float]]:
        return pace.drive(program, self.works, arbitration=arbitration, end_ms=END_MS, tick_ms=TICK_MS, look=self.look)


def least(busy: Sequence[float]) -> float:
    """The least part of any two seconds, in percent."""
    return min(pace.mean(busy, at, at + JUDGED_MS) for at in range(WARM_MS, END_MS - JUDGED_MS + 1, 100))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pace.build(tmp_path_factory.mktemp("pace"))


@pytest.mark.parametrize("arbitration", ["fifo", "timeslice"])
@pytest.mark.parametrize("tenants", MIXES, ids=str)
def test_every_slice_of_a_mix_has_its_guarantee_in_any_two_seconds(
    tenants: list[Tenant], arbitration: str, program: Path, tmp_path: Path
) -> None:
    busy = World(tmp_path, tenants).run(program, arbitration)
    short = [one.core - least(part) for one, part in zip(tenants, busy, strict=True)]
    assert max(short) <= POINTS, short


@pytest.mark.parametrize("arbitration", ["fifo", "timeslice"])
@pytest.mark.parametrize("kernel_us", [20_000, 50_000])
def test_latency_work_with_long_kernels_gains_nothing_and_takes_nothing(
    kernel_us: int, arbitration: str, program: Path, tmp_path: Path
) -> None:
    tenants = [Tenant(30, Kind.LATENCY, kernel_us), Tenant(70, Kind.BATCH, 500)]
    claims, other = World(tmp_path, tenants).run(program, arbitration)
    assert max(pace.mean(claims, at, at + JUDGED_MS) for at in range(WARM_MS, END_MS - JUDGED_MS + 1, 100)) <= 33
    assert least(other) >= 67


def test_latency_work_that_always_wants_the_card_has_windows_and_other_latency_work_keeps_its_turns(
    program: Path, tmp_path: Path
) -> None:
    """And the hog has turns again when it rests."""
    tenants = [Tenant(30, Kind.LATENCY, 1000), Tenant(30, Kind.LATENCY, 200), Tenant(40, Kind.BATCH, 200)]
    world = World(tmp_path, tenants)
    hog, calm, batch = world.works
    world.works = [replace(hog, pause_ms=(2500, END_MS)), replace(calm, pause_ms=(60, END_MS)), batch]
    world.run(program, "fifo")
    assert world.history[len(world.history) // 2] == [Work.YIELDING, Work.LATENCY, Work.YIELDING]
    assert world.history[-1] == [Work.LATENCY, Work.LATENCY, Work.YIELDING]
