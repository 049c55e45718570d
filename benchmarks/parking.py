"""The cost of parking: of a call in a slice that can be parked, of a park and a wake, also beside the driver's
checkpoints, and ten programs on one card.

Calls are measured as processor time on a driver that does nothing. Copies are those of a simulated card, in memory of
this computer: a park and a wake stand beside plain copies of the same run, into memory that is as new as theirs.
The link of a real card is in virtual time, under the real code of the interposer
(native/tests/interposer/parking_test.c).
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks import isolation
from benchmarks.report import Report, median
from egpu.adapters import native
from egpu.adapters.slices.pages import DevicePolicy, Mode, Parking, create_usage, write_policy
from egpu.adapters.slices.rooms import Totals
from egpu_sim.machines.machine import Machine, create_machine, destroy
from support.parking_slices import CARD, CONTEXT, MIB, SIZE, Arbiter, Slice, ends_right, filler, shared, start, used
from support.simulated_gpu import Program

CALL_GOAL_NS: Final = 5.0
COPY_GOAL: Final = 0.9
ASIDE_GOAL_SECONDS: Final = 0.05
"""A park or a wake reaches this part of the copy bandwidth, beside this time."""
WAKE_GOAL_SECONDS: Final = 0.1
GIB: Final = 1 << 30
LINK_GB: Final = 25
PROGRAMS: Final = 10
PAUSE_SECONDS: Final = 1.0
CONTEXT_MIB: Final = 400
"""Of a process on a real A100, about."""


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return everything as plain values."""
    with tempfile.TemporaryDirectory(prefix="egpu-bench-") as scratch:
        _calls(report, Path(scratch))
        _link(report, Path(scratch))
        _copies(report, Path(scratch))
        _mechanisms(report, Path(scratch))
        _programs(report, Path(scratch))
    return report.figures


def _calls(report: Report, scratch: Path) -> None:
    rounds = 5 if report.options.quick else 15
    programs = isolation.build(scratch)
    kinds = {"plain": _slice(scratch / "plain", None), "parkable": _slice(scratch / "parkable", Parking())}
    kinds["shares room"] = _slice(scratch / "shares", Parking(room_bytes=1 << 40, room_until_ns=(1 << 63) - 1))
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for at in range(rounds):
        report.progress(f"calls, round {at + 1} of {rounds}")
        for kind, place in kinds.items():  # in turn, so that a slow minute affects all
            environment = {"LD_LIBRARY_PATH": str(programs / "empty"), "LD_PRELOAD": str(place / isolation.LIBRARY)}
            found[kind].append(isolation.probe(programs, os.environ | environment, "launch"))
    added: Mapping[str, float] = {
        kind: median(one - plain for one, plain in zip(found[kind], found["plain"], strict=True)) for kind in kinds
    }
    rows = [(kind, median(found[kind]), added[kind]) for kind in kinds]
    report.table(f"a launch, ns of processor time ({rounds} rounds)", ("slice", "launch", "more"), rows)
    for kind in ("parkable", "shares room"):
        report.verdict(
            f"a launch, {kind}", f"{added[kind]:+.1f} ns", f"≤ {CALL_GOAL_NS:g} ns", added[kind] <= CALL_GOAL_NS
        )
    report.figures["launch_ns"] = {kind: median(found[kind]) for kind in kinds}


def _slice(place: Path, parking: Parking | None) -> Path:
    place.mkdir()
    (place / isolation.LIBRARY).symlink_to(native.path(isolation.LIBRARY))
    line = DevicePolicy(
        uuid=isolation.FAKE_UUID, minor=0, mode=Mode.CAP, core_ppm=1_000_000, memory_limit_bytes=4 * GIB
    )
    write_policy(place / "policy", [line], parking=parking)
    create_usage(place / "usage")
    return place


def _link(report: Report, scratch: Path) -> None:
    """Park and wake over a link in virtual time."""
    report.progress("a link in virtual time")
    program, sources = scratch / "parking_test", isolation.ROOT / "native"
    parts = [
        isolation.PACE / "parking_test.c",
        *(isolation.INTERPOSER / "parking" / name for name in ("managed.c", "park.c", "room.c")),
        *(sources / "common" / name for name in ("file.c", "descriptor.c")),
    ]
    include = [f"-I{isolation.include()}", f"-I{sources}", f"-I{sources / 'include'}", f"-I{sources / 'driver'}"]
    subprocess.run([shutil.which("gcc") or "cc", "-O2", *include, "-o", program, *parts, "-lpthread"], check=True)
    done = subprocess.run([program, str(GIB), str(LINK_GB)], check=True, capture_output=True, text=True)
    park, wake = map(float, done.stdout.split())
    report.table(f"1 GiB at {LINK_GB} GB/s, virtual time, s", ("", "seconds"), [("park", park), ("wake", wake)])
    goal = f"< {WAKE_GOAL_SECONDS} s"
    report.verdict("a wake of 1 GiB in virtual time", f"{wake:.3f} s", goal, wake < WAKE_GOAL_SECONDS)
    report.figures["virtual"] = {"park_seconds": park, "wake_seconds": wake}


COPIES = """
BYTES = {bytes}
data = numbers(1, BYTES // 4)
mine = upload(data)
say(0)
def plain():
    import mmap
    host = np.frombuffer(mmap.mmap(-1, BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)
    began = time.monotonic()
    ok(d.cuMemcpyDtoH(host.ctypes.data, mine, BYTES))
    down = time.monotonic()
    other = ok(d.cuMemAlloc(BYTES))
    ok(d.cuMemcpyHtoD(other, host.ctypes.data, BYTES))
    up = time.monotonic()
    ok(d.cuMemFree(other))
    return [down - began, up - down]
while True:
    wait()
    times = plain()
    say(times)
    wait()
    ok(d.cuMemsetD8(mine, 1, 4096))
    say(0)
"""


def _copies(report: Report, scratch: Path) -> None:
    """Park and wake beside plain copies, in turn."""
    rounds, size = (3, 128 * MIB) if report.options.quick else (7, 512 * MIB)
    machine = create_machine(scratch / "copies", "A100-40G", 1, context_mib=0, driver_mib=0)
    found: dict[str, list[float]] = {what: [] for what in ("down", "park", "up", "wake")}
    try:
        one = Slice(machine, scratch / "copied", limit=3 * size)
        with one.start(COPIES.replace("{bytes}", str(size))) as program:
            program.hear()
            for at in range(rounds):
                report.progress(f"copies, round {at + 1} of {rounds}")
                program.go()
                down, up = program.hear()
                began, waited = time.monotonic(), one.parking().wait_ns
                one.ask(park=True)
                parked = time.monotonic() - began
                program.go()
                program.hear()
                wake = (one.parking().wait_ns - waited) / 1e9
                for what, seconds in (("down", down), ("park", parked), ("up", up), ("wake", wake)):
                    found[what].append(seconds)
    finally:
        destroy(machine)
    times = {what: median(seconds) for what, seconds in found.items()}
    rows = [(what, seconds, size / 1e9 / seconds) for what, seconds in times.items()]
    report.table(f"{size // MIB} MiB ({rounds} rounds)", ("", "seconds", "GB/s"), rows)
    for copy, move in (("down", "park"), ("up", "wake")):
        # Of each round by itself: a slow minute affects both.
        part = median(
            one / max(other - ASIDE_GOAL_SECONDS, 1e-9) for one, other in zip(found[copy], found[move], strict=True)
        )
        report.verdict(f"{move}, of a copy's speed", f"{part:.2f}", f"≥ {COPY_GOAL}", part >= COPY_GOAL)
    report.figures["copies"] = {"bytes": size, "seconds": times}


HOLDER = """
mine = upload(numbers(1, {bytes} // 4))
say(os.getpid()); wait()
"""
CHECKPOINTER = """
def both(first, second):
    began = time.monotonic()
    for step in (first, second): ok(step({pid}, None))
    return time.monotonic() - began
say(0)
while True:
    wait(); say(both(d.cuCheckpointProcessLock, d.cuCheckpointProcessCheckpoint))
    wait(); say(both(d.cuCheckpointProcessRestore, d.cuCheckpointProcessUnlock))
"""


def _mechanisms(report: Report, scratch: Path) -> None:
    """Our parking beside the driver's checkpoints, in turn, and how much each leaves on the card."""
    rounds, size = (3, 128 * MIB) if report.options.quick else (7, 512 * MIB)
    machine = create_machine(scratch / "mechanisms", "A100-40G", 1, context_mib=CONTEXT_MIB, driver_mib=0)
    found: dict[str, list[float]] = {what: [] for what in ("park", "checkpoint", "wake", "restore")}
    left: dict[str, int] = {}
    try:
        one, other = (
            Slice(machine, scratch / f"mechanism-{parkable}", limit=2 * size + GIB, parkable=parkable)
            for parkable in (True, False)
        )
        with ExitStack() as stack:
            holders = [stack.enter_context(each.start(HOLDER.replace("{bytes}", str(size)))) for each in (one, other)]
            _, pid = [holder.hear() for holder in holders]
            controller = stack.enter_context(other.start(CHECKPOINTER.replace("{pid}", str(pid))))
            controller.hear()
            before = used(machine)
            for at in range(rounds):
                report.progress(f"mechanisms, round {at + 1} of {rounds}")
                for what, park in (("park", True), ("wake", False)):
                    began = time.monotonic()
                    one.ask(park=park)
                    found[what].append(time.monotonic() - began)
                    left.setdefault(what, used(machine) - before)
                for what in ("checkpoint", "restore"):
                    controller.go()
                    found[what].append(controller.hear())
                    left.setdefault(what, used(machine) - before)
    finally:
        destroy(machine)
    rows = [(what, median(seconds), -left[what] / MIB) for what, seconds in found.items()]
    columns = ("", "seconds", "MiB freed")
    report.table(f"{size // MIB} MiB and a context of {CONTEXT_MIB} MiB ({rounds} rounds)", columns, rows)
    report.figures["mechanisms"] = {"bytes": size, "seconds": {what: median(one) for what, one in found.items()}}


def _programs(report: Report, scratch: Path) -> None:
    """Ten programs of 60 on a card of 80, GiB scaled to MiB: the rest of a simulated A100-80G is full. Beside them the
    same programs one after another, and all at once in slices whose room is their own."""
    turns = 4 if report.options.quick else 20
    seconds: dict[str, float] = {}
    with _slices(report, scratch, "in sequence") as (_, slices):
        seconds["in sequence"] = sum(_to_the_end([one], turns) for one in slices)
    with _slices(report, scratch, "exclusive") as (_, slices):
        seconds["exclusive"] = _to_the_end(slices, turns)
    with _slices(report, scratch, "shared room") as (machine, slices):
        seconds["shared room"], right, totals = _in_shared_room(machine, slices, turns)
    parks, contended = totals.parks["GPU"], totals.contended_seconds.get("GPU", 0.0)
    steps = PROGRAMS * turns
    rows = [(way, took, steps / took, seconds["in sequence"] / took) for way, took in seconds.items()]
    report.table(
        f"{PROGRAMS} programs, {turns} steps each; {parks} parks, {contended:.1f} s contended",
        ("", "seconds", "steps/s", "of sequence"), rows,
    )  # fmt: skip
    report.verdict("programs with every bit right", f"{right}", f"{PROGRAMS}", right == PROGRAMS)
    report.figures["programs"] = {"seconds": seconds, "parks": parks, "contended_seconds": contended, "right": right}


@contextmanager
def _slices(report: Report, scratch: Path, way: str) -> Generator[tuple[Machine, list[Slice]]]:
    """Make a machine and the slices of all programs."""
    report.progress(f"{PROGRAMS} programs of {SIZE // MIB} MiB on {CARD // MIB} MiB, {way}")
    folder = scratch / way.replace(" ", "-")  # LD_PRELOAD ends a path at a space
    machine = create_machine(folder, "A100-80G", 1, context_mib=0, driver_mib=0)
    try:
        yield machine, [Slice(machine, scratch / f"{folder.name}-{at}", limit=SIZE + CONTEXT) for at in range(PROGRAMS)]
    finally:
        destroy(machine)


def _in_shared_room(machine: Machine, slices: list[Slice], turns: int) -> tuple[float, int, Totals]:
    with ExitStack() as stack:
        programs = _begun(stack, slices, turns)
        stack.enter_context(filler(machine, CARD))
        arbiter = stack.enter_context(Arbiter([shared(one) for one in slices], PROGRAMS * CONTEXT + CARD))
        seconds, right = _ended(programs, turns)
        return seconds, right, arbiter.rooms.totals


def _to_the_end(slices: list[Slice], turns: int) -> float:
    with ExitStack() as stack:
        seconds, _ = _ended(_begun(stack, slices, turns), turns)
    return seconds


def _begun(stack: ExitStack, slices: list[Slice], turns: int) -> list[Program]:
    programs = [stack.enter_context(start(one, at, turns=turns, pause=PAUSE_SECONDS)) for at, one in enumerate(slices)]
    for program in programs:
        program.hear()
    return programs


def _ended(programs: list[Program], turns: int) -> tuple[float, int]:
    """Return the seconds until the last of them ends, and how many have every bit right."""
    began = time.monotonic()
    for program in programs:
        program.go()
    right = sum(ends_right(program, turns) for program in programs)
    return time.monotonic() - began, right
