"""A card, a clock and tenants that exist only in a test (benchmarks/isolation_pace.c): shares are exact, whatever else
this computer does. The world stands still while somebody looks at the slices' files."""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.slices import NATIVE, SOURCES, compile_c

BUCKET_MS = 10
LATE_MS = 2
"""What a look itself takes, and the thread's way to it."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the processes of one slice launch, in `directory` its policy and usage. `kernels` are those of a launch;
    nothing is launched during `pause_ms`."""

    directory: Path
    kernel_us: int
    kernels: int = 1
    processes: int = 1
    pause_ms: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        numbers = (self.kernel_us * 1000, self.kernels, self.processes, *self.pause_ms)
        return ":".join(map(str, (self.directory, *numbers)))


def build(directory: Path) -> Path:
    """The program of that world."""
    program = directory / "pace"
    parts = [NATIVE / "turns/turns.c", NATIVE / "interposer/bucket.c"]
    parts += [*sorted((NATIVE / "interposer/compute").glob("*.c"))]
    source = NATIVE.parent / "benchmarks" / "isolation_pace.c"
    compile_c(program, "-DEGPU_VIRTUAL_TIME", source, SOURCES / "pace_world.c", *parts, "-lm", flags=())
    return program


def drive(
    program: Path,
    works: Sequence[Work],
    *,
    arbitration: str,
    end_ms: int,
    tick_ms: int,
    look: Callable[[float], object],
) -> list[list[float]]:
    """Of each slice, the percentage of each 10 ms of the card's time that it had. `look` is called with the time, in
    seconds, every `tick_ms`. `arbitration` is fifo (kernels first come, first served) or timeslice."""
    busy: list[list[float]] = []
    command = [str(program), arbitration, str(end_ms), str(tick_ms), *map(str, works)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for line in child.stdout:
            kind, *numbers = line.split()
            if kind == "busy":
                busy.append([int(number) / (BUCKET_MS * 10_000) for number in numbers])
                continue
            look(int(numbers[0]) / 1e9)
            child.stdin.write("\n")
            child.stdin.flush()
    assert child.returncode == 0, command
    return busy


def mean(percents: Sequence[float], from_ms: int, to_ms: int) -> float:
    part = percents[from_ms // BUCKET_MS : to_ms // BUCKET_MS]
    return sum(part) / len(part)
