# ruff: noqa: E402  the path is set before the imports
"""Run programs in a slice and over a pool of this machine, until they end or have used their processor time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from egpu_base.system import proc
from egpu_base.system.processes import descendants
from egpu_sim.machines.machine import destroy, open_machine

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.local_pool import local_pool
from support.waiting import wait_until

EGPU: Final = (sys.executable, "-m", "egpu")
SLICE: Final = ("--core", "40", "--memory", "8GiB")
WALL: Final = 20
"""Seconds of the clock for each second of processor time: a program that waits for ever ends too."""
LOOK_SECONDS: Final = 0.2

WAIVED: Final = 2
"""The exit code of a sample that finds that the machine has not what it shows."""
RIGHT: Final = "right"
REFUSED: Final = r"^egpu.*( not (supported|simulated)| does not support |: this program needs | cannot be loaded: ).*$"
"""Lines on stderr that name what is not supported."""
HIDES: Final = " (EGPU_SIM_VERBOSE=0 hides this line)"
FAILS: Final = r"\bFAIL(ED|URE)?\b|(?<![\w-])Error:|^mismatch "
"""How samples that end with 0 report wrong results."""

Run = Callable[[Sequence[str], Path, float], "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """The end of one run: `right`, or a short reason, and its processor time."""

    verdict: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.verdict}, {self.seconds:.0f} s"


@contextmanager
def in_a_slice() -> Generator[Run]:
    """Run programs in slices of a simulated card of this machine."""
    with tempfile.TemporaryDirectory(prefix="egpu-") as state:
        options = [*EGPU, "run", "--simulate", "A100-80G", "--state-dir", state, *SLICE, "--"]
        try:
            yield lambda program, folder, seconds: run([*options, *program], folder, seconds)
        finally:
            for description in Path(state).glob("*/machine/machine.json"):
                destroy(open_machine(description.parent))


@contextmanager
def over_the_pool() -> Generator[Run]:
    """Run programs on a simulated card of a pool of this machine."""
    with local_pool(tls=False) as pool:
        pool.broker()
        pool.serve("one")
        options = [*EGPU, "run", "--pool", f"127.0.0.1:{pool.port}", *pool.flags("client", "ann"), *SLICE, "--"]

        def run_alone(program: Sequence[str], folder: Path, seconds: float) -> Outcome:
            outcome = run([*options, *program], folder, seconds)
            wait_until(lambda: not pool.leases())  # the executor of a program that was ended works on for a while
            return outcome

        yield run_alone


def run(command: Sequence[str], folder: Path, seconds: float) -> Outcome:
    """Run a command in a process group, which ends at the limit."""
    before = processor_seconds()
    output, errors = folder / "last-output.txt", folder / "last-errors.txt"
    with (
        output.open("w") as out,
        errors.open("w") as err,
        subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        ) as process,
    ):
        ended = _ends(process, before + seconds, time.monotonic() + WALL * seconds)
        used = processor_seconds() - before
        if not ended:
            os.killpg(process.pid, signal.SIGKILL)
    if not ended:
        return Outcome("not ended", used)
    texts = [file.read_text(errors="replace") for file in (output, errors)]
    return Outcome(judged(process.returncode, *texts), used)


def _ends(process: subprocess.Popen[bytes], processor_limit: float, clock_limit: float) -> bool:
    """Wait for a process; return whether it ended before a limit."""
    while processor_seconds() < processor_limit and time.monotonic() < clock_limit:
        try:
            process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return True
    return process.poll() is not None


def processor_seconds() -> float:
    """Return the processor time of all processes that this one has started, and of theirs, alive or ended."""
    ticks = sum(sum(map(int, proc.stat(each.pid)[11:15])) for each in descendants(os.getpid()))
    times = os.times()
    return times.children_user + times.children_system + ticks / os.sysconf("SC_CLK_TCK")


def judged(status: int, output: str, errors: str) -> str:
    """Return `right`, or the reason why a run is not."""
    refused = re.search(REFUSED, errors, re.MULTILINE)
    if refused and status != 0:
        said = refused[0].removesuffix(HIDES).replace("`", "'").replace(f"{ROOT}/", "")
        return f"refused: `{said}`"
    if status == WAIVED:
        return "waived by the sample"
    if status != 0:
        return f"wrong: exit code {status}"
    if re.search(FAILS, f"{output}\n{errors}", re.MULTILINE):
        return "wrong: it reports a failure"
    return RIGHT
