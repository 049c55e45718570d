"""Turns between processes and what NVML says of them, to the millisecond, on a clock that the test moves."""
# ruff: noqa: E501  statements of the programs inside read better on one line

import mmap
import struct
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from egpu.adapters.cards.compute_policy import set_time_slice
from egpu_sim.machines.clock import Clock
from egpu_sim.machines.machine import Machine, profiles
from support.simulated_gpu import Program, machine, run
from support.waiting import wait_until

MS = 1_000_000
BUCKET = 1 << 24  # nanoseconds; the account of the card's time is kept by these

# Within the machine's file (simulator/native/gpu/sim_machine.h).
BUSY_UNTIL = 4096 + 1024
PROCESSES_OFFSET = 32
PROCESS_BYTES = 128 + 17 * 1048 + 544
PID, RUNNABLE = 4, 128 + 8

KERNELS = """
context()
f = function(STORE.replace("DURATION", "LENGTH"), "store")
a = upload(np.zeros(1, np.uint32))
start, end = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
say(os.getpid()); wait()
ok(d.cuEventRecord(start, 0))
for _ in range(COUNT): ok(launch(f, 1, 1, a, (1, ctypes.c_uint32)))
ok(d.cuEventRecord(end, 0)); say("queued")
ok(d.cuEventSynchronize(end)); say(round(ok(d.cuEventElapsedTime(start, end)), 3)); wait()
"""

READ = """
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
try: samples = n.nvmlDeviceGetProcessUtilization(h, SINCE)
except n.NVMLError_NotFound: samples = []
say([n.nvmlDeviceGetUtilizationRates(h).gpu, {s.pid: s.smUtil for s in samples}, max([s.timeStamp for s in samples], default=0)])
"""


class Reins:
    """A machine whose time stands still, and its card."""

    def __init__(self, made: Machine, clock: Clock) -> None:
        self.machine = made
        self.clock = clock
        with made.state.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 64 << 20, prot=mmap.PROT_READ)

    def busy_until(self) -> int:
        return struct.unpack_from("<Q", self._map, BUSY_UNTIL)[0]

    def wants_the_card(self, pid: int) -> bool:
        processes: int = struct.unpack_from("<Q", self._map, PROCESSES_OFFSET)[0]
        slots = range(processes, processes + 8 * PROCESS_BYTES, PROCESS_BYTES)
        return any(
            struct.unpack_from("<I", self._map, at + PID)[0] == pid
            and struct.unpack_from("<I", self._map, at + RUNNABLE)[0] > 0
            for at in slots
        )

    def pass_busily(self, ns: int) -> None:
        """Time goes on as far as the card has been given to somebody, again and again: nobody is ever late."""
        end = self.clock.now() + ns
        while (now := self.clock.now()) < end:
            wait_until(lambda now=now: self.busy_until() > now)
            self.clock.advance(min(self.busy_until(), end) - now)

    def begin(self, programs: dict[str, Program]) -> dict[str, int]:
        """Lets them queue their kernels at this moment, one after the other; their pids."""
        pids: dict[str, int] = {}
        for name, program in programs.items():
            pids[name] = program.hear()
            program.go()
            assert program.hear() == "queued"
            wait_until(lambda name=name: self.wants_the_card(pids[name]))
        return pids

    def read(self, since: int = 0) -> tuple[int, dict[int, int], int]:
        card, processes, newest = run(self.machine, f"SINCE = {since}\n" + READ)
        return card, {int(pid): share for pid, share in processes.items()}, newest


@contextmanager
def reins(directory: Path, arbitration: str = "timeslice", model: str = "A100-80G") -> Generator[Reins]:
    with machine(directory, model, 1, clock="manual", arbitration=arbitration) as made, Clock(made) as clock:
        yield Reins(made, clock)


def kernels(length_us: int, count: int) -> str:
    return KERNELS.replace("LENGTH", str(length_us)).replace("COUNT", str(count))


@pytest.mark.parametrize(("arbitration", "short_ms", "long_ms"), [("timeslice", 3, 21), ("fifo", 21, 20)])
def test_a_short_kernel_that_comes_during_a_long_one(
    tmp_path: Path, arbitration: str, short_ms: float, long_ms: float
) -> None:
    """It runs after a slice of the other, which then takes longer; or after all of it."""
    with (
        reins(tmp_path, arbitration) as held,
        Program(held.machine, kernels(20_000, 1)) as long,
        Program(held.machine, kernels(1000, 1)) as short,
    ):
        held.begin({"long": long, "short": short})
        held.pass_busily(21 * MS)
        assert [short.hear(), long.hear()] == [short_ms, long_ms]


@pytest.mark.parametrize(("length", "short_ms"), [("short", 2), ("medium", 5), ("long", 17)])
def test_a_short_kernel_waits_for_the_time_slice_that_its_card_was_set_to(
    tmp_path: Path, length: str, short_ms: float
) -> None:
    """Of 2 ms: half, twice and eight times."""
    with (
        reins(tmp_path) as held,
        Program(held.machine, kernels(20_000, 1)) as long,
        Program(held.machine, kernels(1000, 1)) as short,
    ):
        set_time_slice(held.machine.cards[0].uuid, length, held.machine.driver_dir / "libnvidia-ml.so.1")
        held.begin({"long": long, "short": short})
        held.pass_busily(21 * MS)
        assert short.hear() == short_ms


def test_processes_that_contend_have_equal_time_whatever_their_kernels(tmp_path: Path) -> None:
    """And NVML says so of each, since when the reader last looked; the card is busy all the time."""
    with (
        reins(tmp_path) as held,
        Program(held.machine, kernels(200, 900)) as short,
        Program(held.machine, kernels(20_000, 9)) as long,
    ):
        pids = held.begin({"short": short, "long": long})
        _, idle, before = held.read()
        assert set(idle.values()) == {0}
        held.pass_busily(14 * BUCKET)
        wait_until(lambda: held.read()[0] == 100)
        card, shares, newest = held.read(before)
        assert card == 100
        assert abs(newest - before - 14 * BUCKET // 1000) <= 1
        assert abs(shares[pids["short"]] - shares[pids["long"]]) <= 3, shares
        assert 97 <= sum(shares.values()) <= 101, shares


def test_what_each_process_had_is_told_apart_in_time(tmp_path: Path) -> None:
    """One works, then the other: a reader sees the one that worked since it last looked."""
    with (
        reins(tmp_path) as held,
        Program(held.machine, kernels(1000, 50)) as first,
        Program(held.machine, kernels(1000, 100)) as second,
    ):
        pids = held.begin({"first": first})
        held.pass_busily(50 * MS)
        assert first.hear() == 50
        held.clock.advance(4 * BUCKET - 50 * MS)
        _, shares, seen = held.read()
        assert shares[pids["first"]] == sum(shares.values()) == round(100 * 50 * MS / (120 * BUCKET)), (
            "of all the history"
        )
        pids |= held.begin({"second": second})
        held.pass_busily(100 * MS)
        assert second.hear() == 100
        held.clock.advance(8 * BUCKET - 100 * MS)
        _, shares, _ = held.read(seen)
        assert shares == {pids["first"]: 0, pids["second"]: round(100 * 100 * MS / (8 * BUCKET))}


@pytest.mark.parametrize("model", ["A100-80G", "T4"])
def test_the_window_of_utilisation_is_the_models(tmp_path: Path, model: str) -> None:
    window = profiles()[model].utilization_window_ms * MS
    with reins(tmp_path, model=model) as held, Program(held.machine, kernels(1000, 50)) as program:
        held.begin({"it": program})
        held.pass_busily(50 * MS)
        assert program.hear() == 50
        held.clock.advance(BUCKET)
        now = held.clock.now()
        buckets = now // BUCKET - (now - window) // BUCKET
        assert held.read()[0] == round(100 * 50 * MS / (buckets * BUCKET))
        held.clock.advance(window - 50 * MS - 2 * BUCKET)
        assert held.read()[0] > 0
        held.clock.advance(50 * MS + 2 * BUCKET)
        assert held.read()[0] == 0


@pytest.mark.parametrize("arbitration", ["timeslice", "fifo"])
def test_a_kernel_that_is_longer_than_the_history(tmp_path: Path, arbitration: str) -> None:
    """Ten seconds: the card and the process are busy all the time, and idle as soon as it is over."""
    with reins(tmp_path, arbitration) as held, Program(held.machine, kernels(10_000_000, 1)) as program:
        pid = held.begin({"it": program})["it"]
        for _ in range(2):
            for _ in range(10):
                wait_until(lambda: held.busy_until() >= held.clock.now())
                held.clock.advance(500 * MS)
            wait_until(lambda: held.read()[:2] == (100, {pid: 100}) if held.busy_until() > held.clock.now() else True)
        assert program.hear() == 10_000
        held.clock.advance(2500 * MS)
        assert held.read()[:2] == (0, {pid: 0})
