"""Idle time is used and given back: the interposer's control and the agent's own, together, in virtual time.

The world stands still while the agent looks (benchmarks/isolation_pace.c, which `make bench` uses as well).
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from egpu.adapters.slices.pages import DevicePolicy, Mode, create_usage, write_policy
from egpu.adapters.slices.sharing import BUSY_SECONDS
from egpu.api.allocation import CardShare
from egpu.apps.agent.limits.compute import ComputeSharing
from egpu.apps.agent.slots.directories import Slots
from support import pace
from support.slices import slot_record, uuid

SHARES = (30, 70)
STOP_MS, RESUME_MS, END_MS = 1000, 1500, 2500
KERNELS_US = ((20, 20), (20, 500), (100, 100), (100, 5000), (500, 100), (500, 500), (5000, 20), (5000, 5000))


@dataclass(frozen=True)
class Case:
    """Percent of the GPU's time in each 10 ms: of who may use what the other leaves, and of the other."""

    name: str
    borrower: list[float]
    lender: list[float]

    def mean(self, from_ms: int, to_ms: int) -> tuple[float, float]:
        return pace.mean(self.borrower, from_ms, to_ms), pace.mean(self.lender, from_ms, to_ms)

    @property
    def idle_ms(self) -> int:
        """When the lender's last work was over."""
        busy = [index for index in range(RESUME_MS // pace.BUCKET_MS) if self.lender[index] > 0]
        return (busy[-1] + 1) * pace.BUCKET_MS


def a_slot(slots: Slots, index: int) -> Path:
    core, shares = SHARES[index], index == 0
    share = CardShare(uuid=uuid("1"), index=0, minor=0, core=core, memory_mib=1024)
    record = slot_record(slots, str(index), share, core_limit=100 if shares else 0)
    slots.replace(record, lambda directory: None)
    place, mode = slots.path(record.slot_id), Mode.SHARE if shares else Mode.CAP
    line = DevicePolicy(uuid=uuid("1"), minor=0, mode=mode, core_ppm=core * 10_000, memory_limit_bytes=1 << 30)
    write_policy(place / "policy", [line])
    create_usage(place / "usage")
    return place


def run(program: Path, directory: Path, arbitration: str, kernels_us: tuple[int, int]) -> Case:
    now = 0.0
    slots = Slots(directory)
    pauses = ((0, 0), (STOP_MS, RESUME_MS))
    works = [
        pace.Work(directory=a_slot(slots, index), kernel_us=kernels_us[index], pause_ms=pauses[index])
        for index in range(2)
    ]
    sharing = ComputeSharing(slots, clock=lambda: now)

    def look(seconds: float) -> None:
        nonlocal now
        now = seconds
        sharing.step()

    tick_ms = int(BUSY_SECONDS * 1000) + pace.LATE_MS
    borrower, lender = pace.drive(program, works, arbitration=arbitration, end_ms=END_MS, tick_ms=tick_ms, look=look)
    return Case(f"{arbitration}, kernels of {kernels_us} us", borrower, lender)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    directory = tmp_path_factory.mktemp("pace")
    program = pace.build(directory)
    return [
        run(program, directory / f"{arbitration}-{number}", arbitration, kernels)
        for arbitration in ("fifo", "timeslice")
        for number, kernels in enumerate(KERNELS_US)
    ]


def test_each_has_its_share_while_both_work(cases: list[Case]) -> None:
    for case in cases:
        assert case.mean(500, STOP_MS) == pytest.approx(SHARES, abs=3), case.name


def test_idle_time_is_used_within_50_ms(cases: list[Case]) -> None:
    """From 50 ms after the other had nothing to do any more: at least 95 percent of what that left, and its own."""
    for case in cases:
        assert case.mean(case.idle_ms + 50, RESUME_MS)[0] >= SHARES[0] + 0.95 * SHARES[1], case.name


def test_idle_time_is_given_back_within_50_ms(cases: list[Case]) -> None:
    """From 50 ms after the other began again it has its share. Who gave way pays for what overlapped in between, and
    has its own share again when that is paid."""
    for case in cases:
        kept, back = case.mean(RESUME_MS + 50, RESUME_MS + 450)
        assert back >= SHARES[1] - 3, case.name
        assert kept >= SHARES[0] - 10, case.name
        assert case.mean(RESUME_MS + 450, END_MS - 50) == pytest.approx(SHARES, abs=5), case.name
