"""The cost of one look at whose the processes of a node's cards are, beside processes with many mappings.

Each case has processes that are all new (a first look) and the same ones again (a later look). Processes show no policy
page, which costs most: a tenant can do that. Processor time of the looking process alone.
"""

import contextlib
import ctypes
import os
import signal
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.report import Report
from egpu.adapters.slices import membership
from egpu.adapters.slices.attribution import Attribution, WatchedSlice
from egpu_base.system.processes import Process, descendants

PROCESSES, MAPPINGS = 1000, 1000
FEW, MOST_MAPPINGS = 10, 60_000
ROUNDS, QUICK_ROUNDS = 5, 2
GROUP: Final = "/kubepods/burstable/pod1a/c"
GOAL_LATER_MS, GOAL_FIRST_MS, GOAL_LARGE_MS = 30.0, 150.0, 50.0
"""A later look costs what one at ten processes with 1,000 mappings cost when each look read all mappings, and the time
for mappings. A first look asks the kernel three questions about each process, which take it 27 ms for a thousand."""
START_SECONDS: Final = 60.0
PAGE = "/opt/egpu/policy"
PAGE_NAME: Final = "policy"


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return the figures in milliseconds."""
    rounds = QUICK_ROUNDS if report.options.quick else ROUNDS
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        report.progress(f"{PROCESSES} processes with {MAPPINGS} mappings each")
        with _processes(PROCESSES, MAPPINGS, Path(place)) as (leader, pids):
            slices = _slices(Path(place), leader)
            for what, watched in slices.items():
                found[what] = _looks(pids, watched, rounds)
            few = _looks(pids[:FEW], slices["of no slice"], rounds)
        report.progress(f"a process with {MOST_MAPPINGS} mappings")
        with _processes(1, MOST_MAPPINGS, Path(place)) as (_, pids):
            large = _looks(pids, slices["of no slice"], rounds)
        with _short_path() as short, _processes(1, MOST_MAPPINGS, short) as (_, pids):
            alike = _looks(pids, [*slices["of no slice"], *slices["of a pod with two"]], rounds)
    rows = [(what, each["first"], each["later"]) for what, each in found.items()]
    rows += [(f"of no slice, {FEW} processes", few["first"], few["later"])]
    rows += [(f"of no slice, one of {MOST_MAPPINGS} mappings", large["first"], large["later"])]
    rows += [(f"of no slice, {MOST_MAPPINGS} mappings that look like pages", alike["first"], alike["later"])]
    report.table(f"a look at {PROCESSES} processes of {MAPPINGS} mappings, ms", ("whose", "first", "later"), rows)
    later, first = max(one["later"] for one in found.values()), max(one["first"] for one in found.values())
    report.verdict("a later look", f"{later:.1f} ms", f"≤ {GOAL_LATER_MS:g} ms", later <= GOAL_LATER_MS)
    report.verdict("a first look", f"{first:.1f} ms", f"≤ {GOAL_FIRST_MS:g} ms", first <= GOAL_FIRST_MS)
    most = max(*large.values(), *alike.values())
    report.verdict("a look at a large process", f"{most:.1f} ms", f"≤ {GOAL_LARGE_MS:g} ms", most <= GOAL_LARGE_MS)
    return {"ms": found, "few": few, "large": large, "alike": alike, "processes": PROCESSES, "mappings": MAPPINGS}


def _slices(place: Path, leader: int) -> dict[str, list[WatchedSlice]]:
    def one(key: str, **how: Any) -> WatchedSlice:
        directory = place / key
        directory.mkdir()
        (directory / "policy").write_bytes(bytes(4096))
        return WatchedSlice(key=key, policy=directory / "policy", usage=directory / "usage", **how)

    return {
        "of a pod with one container": [one("a", page=PAGE, pods=("1a",))],
        "of a pod with two": [one("b", page=PAGE, pods=("1a",)), one("c", page=PAGE, pods=("1a",))],
        "of egpu run": [one("d", root=Process.of(leader))],
        "of no slice": [one("e")],
    }


def _looks(pids: Sequence[int], slices: Sequence[WatchedSlice], rounds: int) -> dict[str, float]:
    """Return the least processor time of a first and of a later look: others of the machine only add to it."""
    first: list[float] = []
    later: list[float] = []
    with _groups(any(one.pods for one in slices)):
        for _ in range(rounds):
            attribution = Attribution()
            first.append(_spent(lambda now=0.0, on=attribution: on.owners(pids, slices, now=now)))
            later.append(_spent(lambda now=2.0, on=attribution: on.owners(pids, slices, now=now)))
    return {"first": round(1000 * min(first), 1), "later": round(1000 * min(later), 1)}


def _spent(look: Callable[[], object]) -> float:
    before = time.process_time()
    look()
    return time.process_time() - before


@contextlib.contextmanager
def _groups(of_pod: bool) -> Generator[None]:
    """Say that every process is in a pod's control group, after the kernel was asked for the real one."""
    asked, ours = membership.control_groups, os.getpid()

    def groups(pid: int) -> frozenset[str]:
        found = asked(pid)
        return frozenset({GROUP}) if of_pod and pid != ours else found

    membership.control_groups = groups
    try:
        yield
    finally:
        membership.control_groups = asked


@contextlib.contextmanager
def _short_path() -> Generator[Path]:
    """Yield a directory with a short path: the more mappings are in what is read of a process."""
    with tempfile.TemporaryDirectory(prefix="m", dir="/dev/shm") as place:
        yield Path(place)


@contextlib.contextmanager
def _processes(count: int, mappings: int, place: Path) -> Generator[tuple[int, list[int]]]:
    """Start a process with so many children, each with so many mappings of one file; yield its pid and theirs."""
    file, ready = place / PAGE_NAME, place / f"ready-{count}"
    file.write_bytes(bytes(8192))
    if (leader := os.fork()) == 0:
        try:
            _lead(count, mappings, file, ready)
        finally:
            os._exit(1)
    children: list[int] = []
    try:
        until = time.monotonic() + START_SECONDS
        while not ready.exists():
            if time.monotonic() > until:
                raise TimeoutError(f"{count} processes did not start within {START_SECONDS:g} s")
            time.sleep(0.05)
        children = [one.pid for one in descendants(leader)]
        yield leader, children
    finally:
        for pid in (*children, leader):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(leader, 0)


def _lead(count: int, mappings: int, file: Path, ready: Path) -> None:
    libc = ctypes.CDLL(None)
    word, size = ctypes.c_int, ctypes.c_size_t
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, size, word, word, word, ctypes.c_long]
    handle = os.open(file, os.O_RDONLY)
    for number in range(mappings):  # neighbours are of different places, so that the kernel does not join them
        libc.mmap(None, 4096, 1, 2, handle, 4096 * (number % 2))
    for _ in range(count):
        if os.fork() == 0:
            signal.pause()
            os._exit(0)
    ready.touch()
    signal.pause()
