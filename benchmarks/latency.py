"""The time that an inference program waits for a card beside batch work, and what it leaves to it.

No GPU: a card, a clock and the programs are in virtual time (native/tests/interposer/pace_world.h), under the real code
of interposer, arbiter and agent. Cards run kernels first come, first served, or slice time between processes. Three
ways to share: the driver alone, windows as between batch work, and turns (`work: latency`).
"""

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.isolation import FAKE_UUID, GIB, NEVER, build
from benchmarks.report import Report
from egpu.adapters.slices.pages import DevicePolicy, Mode, create_usage, write_policy
from egpu.adapters.slices.sharing import BUSY_SECONDS, TimeSharing, TimeSlice
from egpu.adapters.slices.turns import TurnArbiter, TurnSlice
from egpu.adapters.slices.work import Kind

WAYS: Final = ("driver", "windows", "turns")
BATCH_US: Final = (100, 2_000, 20_000)
CORE, BATCH_CORE = 30, 70
WARM: Final = 0.1
STEP_GOAL, LEFT_GOAL, POINTS_GOAL = 1.15, 0.95, 3.0
SLICE_US: Final = 2_000
BUCKETS_OF_TWO_SECONDS: Final = 200


@dataclass(frozen=True)
class Program:
    """An inference program: bursts of kernels of 200 us, one in each period, that it waits for."""

    name: str
    burst: int
    period_us: int
    jitter_us: int


PROGRAMS: Final = (Program("5 ms of 50 ms", 25, 50_000, 20_000), Program("0.2 ms of 1 ms", 1, 1_000, 300))


class _ArbiterOfTheWorld(TurnArbiter):
    """The world in virtual time has its own."""

    def follow(self, cards: Sequence[Sequence[TurnSlice]]) -> bool:
        return bool(cards)


@dataclass(frozen=True)
class Seen:
    """The steps of the inference program in microseconds, and both programs' parts of each 10 ms."""

    steps: list[float]
    busy: list[list[float]]

    def percentile(self, percent: float) -> float:
        """Return it without the first steps; NEVER where so few were done."""
        kept = sorted(self.steps[int(len(self.steps) * WARM) + 2 :])
        if not kept:
            return NEVER
        return kept[min(len(kept) - 1, int(len(kept) * percent / 100))]

    def share(self, slice_number: int) -> float:
        kept = self.busy[slice_number][int(len(self.busy[slice_number]) * WARM) :]
        return sum(kept) / len(kept)

    def least(self, slice_number: int) -> float:
        """Return the least share of any 2 s."""
        busy, width = self.busy[slice_number], BUCKETS_OF_TWO_SECONDS
        return min(sum(busy[at : at + width]) / width for at in range(50, len(busy) - width, 10))


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return everything as plain values."""
    seconds = 3 if report.options.quick else 10
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="egpu-bench-") as scratch:
        folder = Path(scratch)
        programs = build(folder)
        for card in ("fifo", "timeslice"):
            for program in PROGRAMS:
                report.progress(f"{program.name} on a card of kind {card}")
                alone = _world(folder, programs, card, program, 0, "driver", seconds)
                for way in WAYS:
                    for kernel_us in BATCH_US:
                        seen = _world(folder, programs, card, program, kernel_us, way, seconds)
                        found.append(_figures(card, program, way, kernel_us, alone, seen))
    report.figures["latency"] = found
    _tables(report, found)
    _judge(report, [one for one in found if one["way"] == "turns"])
    return report.figures


def _figures(card: str, program: Program, way: str, kernel_us: int, alone: Seen, seen: Seen) -> dict[str, Any]:
    used, left = seen.share(0), seen.share(1)
    return {
        "card": card,
        "program": program.name,
        "way": way,
        "kernel_us": kernel_us,
        **{f"p{percent}": seen.percentile(percent) / alone.percentile(percent) for percent in (50, 99, 99.9)},
        "over_us": seen.percentile(99) - STEP_GOAL * alone.percentile(99) - kernel_us,
        "batch": left / 100,
        "of_the_rest": left / (100 - used),
        "short_points": max(BATCH_CORE - seen.least(1), 0.0),
    }


def _world(folder: Path, programs: Path, card: str, program: Program, kernel_us: int, way: str, seconds: int) -> Seen:
    """Run both programs for so many seconds; `kernel_us` 0: the first one alone."""
    place = Path(tempfile.mkdtemp(dir=folder))
    kinds = [Kind.LATENCY if way == "turns" else Kind.BATCH, Kind.BATCH]
    described = [f"{place / 'slice-0'}:200000:1:1:0:0:{program.burst}:{program.period_us}:{program.jitter_us}"]
    if kernel_us:
        described.append(f"{place / 'slice-1'}:{kernel_us * 1000}:1:1:0:0")
    for number, core in enumerate((CORE, BATCH_CORE)[: len(described)]):
        directory = place / f"slice-{number}"
        directory.mkdir()
        mode = Mode.UNLIMITED if way == "driver" else Mode.SHARE
        line = DevicePolicy(
            uuid=FAKE_UUID,
            minor=0,
            mode=mode,
            core_ppm=core * 10_000,
            memory_limit_bytes=GIB,
            weight=core,
            kind=kinds[number],
        )
        write_policy(directory / "policy", [line])
        create_usage(directory / "usage")
    return _run(place, programs, card, described, seconds)


def _run(place: Path, programs: Path, card: str, described: Sequence[str], seconds: int) -> Seen:
    now = [0.0]
    slices = [
        TimeSlice(number, place / f"slice-{number}" / "policy", place / f"slice-{number}" / "usage")
        for number in range(len(described))
    ]
    sharing = TimeSharing(lambda: slices, lambda: 0, clock=lambda: now[0], arbiter=_ArbiterOfTheWorld())
    command = [programs / "pace", card, str(seconds * 1000), str(int(BUSY_SECONDS * 1000)), *described]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin
    assert child.stdout
    busy: list[list[float]] = []
    steps: list[float] = []
    for line in child.stdout:
        kind, *numbers = line.split()
        if kind == "busy":
            busy.append([int(number) / 100_000 for number in numbers])
        elif kind == "steps":
            steps = [int(number) / 1000 for number in numbers]
        else:
            now[0] = int(numbers[0]) / 1e9
            sharing.step()
            child.stdin.write("\n")
            child.stdin.flush()
    child.stdin.close()
    if child.wait() or len(busy) != len(described):
        raise SystemExit(f"{command}: exit {child.returncode}")
    return Seen(steps, busy)


def _tables(report: Report, found: Sequence[dict[str, Any]]) -> None:
    columns = ("step", "card", "batch kernels", "way", "p50", "p99", "p99.9", "batch, of alone", "of the rest")
    rows = [
        [
            one["program"],
            one["card"],
            f"{one['kernel_us']} us",
            one["way"],
            *(_times(one[f"p{percent}"]) for percent in (50, 99, 99.9)),
            f"{one['batch']:.2f}",
            f"{one['of_the_rest']:.2f}",
        ]
        for one in sorted(found, key=lambda one: (one["program"], one["card"], one["kernel_us"]))
    ]
    title = "an inference step (guarantee 30 %) beside batch work (70 %), in times of alone (virtual time)"
    report.table(title, columns, rows)


def _times(value: float) -> str:
    return "never" if value == NEVER else f"{value:.2f}"


def _judge(report: Report, found: Sequence[dict[str, Any]]) -> None:
    for card in ("fifo", "timeslice"):
        mine = [one for one in found if one["card"] == card]
        worst = max(one["over_us"] for one in mine)
        goal = f"≤ {STEP_GOAL} × alone + one batch kernel"
        report.verdict(f"p99 of a step, {card} (virtual time)", f"{worst:+.0f} us", goal, worst <= 0)
        least = min(one["of_the_rest"] for one in mine)
        what = f"batch work has of the rest, {card} (virtual time)"
        report.verdict(what, f"{least:.3f}", f"≥ {LEFT_GOAL}", least >= LEFT_GOAL)
        short = max(one["short_points"] for one in mine)
        what = f"batch work below its guarantee in any 2 s, {card} (virtual time)"
        report.verdict(what, f"{short:.1f} points", f"≤ {POINTS_GOAL:g}", short <= POINTS_GOAL)
