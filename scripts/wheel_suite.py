# ruff: noqa: E402  the path is set before the imports
"""Run PyTorch's or JAX's CUDA wheel on a simulated card in small steps: in a slice and over the pool, also parked and
woken at random. A step that passed before may not fail.

    scripts/wheel_suite.py (torch|jax) --python PYTHON [--place PLACE]

PYTHON is an interpreter that has the wheel (requirements/torch.txt, requirements/jax.txt; `make torch` and `make jax`
make one). The steps are those of scripts/torch_steps.py or scripts/jax_steps.py, in one process for each place;
scripts/torch_suite.yaml or scripts/jax_suite.yaml lists those that pass in each place. At the end it prints the table
of docs/internals/runtime.md.
"""

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from package_suites import SuiteError, check_versions

from egpu_sim.machines.machine import destroy, open_machine, profiles

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.local_pool import FAR, LocalPool, local_pool
from support.parked_at_random import parked_at_random

WHEELS: Final = ("torch", "jax")
CARD: Final = "A100-80G"
MEMORY_MIB: Final = 8192
SECONDS: Final = 3600.0
"""For all steps in one place: some minutes on two quiet cores, half an hour on busy ones."""
LONGEST_PAUSE: Final = 2.0
"""Seconds between two questions to a parked place."""

Outcomes = Mapping[str, str]
"""By step: `passed`, or the reason of its failure."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; return the exit code."""
    parser = argparse.ArgumentParser(description="Run a CUDA wheel on a simulated card, step by step.")
    parser.add_argument("wheel", choices=WHEELS, help="whose steps")
    parser.add_argument("--python", required=True, type=Path, help="an interpreter that has this CUDA wheel")
    parser.add_argument("--place", choices=list(PLACES), action="append", help="default: all")
    options = parser.parse_args(arguments)
    name = Path(__file__).with_name(f"{options.wheel}_suite.yaml")
    suite: dict[str, Any] = yaml.safe_load(name.read_text())
    program = [str(options.python.absolute()), "-W", "ignore", str(name.with_name(f"{options.wheel}_steps.py"))]
    try:
        check_versions(options.python.absolute(), suite["requires"])
        found = {place: PLACES[place](program) for place in options.place or PLACES}
    except SuiteError as error:
        print(error, file=sys.stderr)
        return 2
    print(*table(found), sep="\n")
    return verdict(found, suite["passed"], name.name)


def in_a_slice(program: Sequence[str]) -> Outcomes:
    """Run in a slice of a simulated card of this machine."""
    with local_state() as state:
        return steps(["-m", "egpu", *simulated(state)], program)


def in_a_parked_slice(program: Sequence[str]) -> Outcomes:
    """Run in a slice that is parked and woken at random moments."""
    with local_state() as state, parked(state, "*/*.slice/policy"):
        return steps(["-m", "egpu", *simulated(state), "--parkable"], program)


def simulated(state: Path) -> list[str]:
    return ["run", "--simulate", CARD, "--state-dir", str(state)]


@contextlib.contextmanager
def local_state() -> Generator[Path]:
    """Yield a directory for the state of `egpu run`, and destroy its simulated machines at the end."""
    with tempfile.TemporaryDirectory(prefix="egpu-") as folder:
        try:
            yield Path(folder)
        finally:
            for description in Path(folder).glob("*/machine/machine.json"):
                destroy(open_machine(description.parent))


def over_the_pool(program: Sequence[str], *, start: Sequence[str]) -> Outcomes:
    """Run on a card of a pool of this machine, whose `egpu` starts with `start`."""
    with pool_of_one_card() as pool:
        return steps([*start, *leased(pool)], program)


def over_the_parked_pool(program: Sequence[str]) -> Outcomes:
    """Run on a lease through shared memory that is parked and woken at random moments."""
    with pool_of_one_card() as pool, parked(pool.directory, "one/leases/*/policy"):
        return steps(["-m", "egpu", *leased(pool), "--parkable", "--parking-resident", "50%"], program)


def leased(pool: LocalPool) -> list[str]:
    return ["run", "--pool", f"127.0.0.1:{pool.port}", *pool.flags("client", "ann")]


@contextlib.contextmanager
def pool_of_one_card() -> Generator[LocalPool]:
    with local_pool(tls=False) as pool:
        pool.broker()
        pool.serve("one", 1, "--collectives")
        yield pool


@contextlib.contextmanager
def parked(folder: Path, page: str) -> Generator[None]:
    """Park and wake the slice whose policy page is found below `folder`. Raises SuiteError: it was never parked."""
    with parked_at_random(
        lambda: next((one.parent for one in folder.glob(page)), None), seed=1, longest_pause=LONGEST_PAUSE
    ) as parks:
        yield
    if not sum(parks.values()):
        raise SuiteError("the slice was never parked")
    print(f"parked {sum(parks.values())} times")


PLACES: Final[Mapping[str, Callable[[Sequence[str]], Outcomes]]] = {
    "slice": in_a_slice,
    "slice, parked at random": in_a_parked_slice,
    "pool, shared memory": lambda program: over_the_pool(program, start=["-m", "egpu"]),
    "pool, TCP": lambda program: over_the_pool(program, start=["-c", FAR]),
    "pool, parked at random": over_the_parked_pool,
}


def steps(run: Sequence[str], program: Sequence[str]) -> Outcomes:
    """Run all steps with `egpu run`, which needs only the slice's size."""
    card = [profiles()[CARD].name, str(MEMORY_MIB)]
    command = [sys.executable, *run, "--memory", f"{MEMORY_MIB}MiB", "--", *program, *card]
    return outcomes(*told(command))


def told(command: Sequence[str]) -> tuple[str, int]:
    """Run a command and pass on its lines when they come; return them, and its exit code. It is ended after SECONDS."""
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        timer = threading.Timer(SECONDS, process.terminate)
        timer.start()
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
        timer.cancel()
    return "".join(lines), process.returncode


def outcomes(output: str, status: int) -> Outcomes:
    """Return the outcomes of the steps. Raises SuiteError: they did not get to their end."""
    found = dict(re.findall(r"^step ([a-z ]+): (.+)$", output, re.MULTILINE))
    if status != 0 or not found:
        raise SuiteError(f"the steps ended with status {status}, after {list(found)[-1:] or 'none of them'}")
    return found


def table(found: Mapping[str, Outcomes]) -> list[str]:
    """Return lines of Markdown: a row for each step, a column for each place; below them the reasons of failures."""
    names = list(dict.fromkeys(name for each in found.values() for name in each))
    marks = {name: ["yes" if each.get(name) == "passed" else "no" for each in found.values()] for name in names}
    lines = [f"| step | {' | '.join(found)} |", "|---" * (1 + len(found)) + "|"]
    lines += [f"| {name} | {' | '.join(marks[name])} |" for name in names]
    reasons = [
        f"{place}: {name}: {said}" for place, each in found.items() for name, said in each.items() if said != "passed"
    ]
    return [*lines, "", *reasons]


def verdict(found: Mapping[str, Outcomes], best: Mapping[str, Sequence[str]], written: str) -> int:
    """Return the exit code, after a line for each place where the file `written` differs from the results."""
    status = 0
    for place, each in found.items():
        passed = [name for name, said in each.items() if said == "passed"]
        if lost := [name for name in best.get(place, ()) if name not in passed]:
            print(f"{place}: passed before, and fail now: {', '.join(lost)}", file=sys.stderr)
            status = 1
        if won := [name for name in passed if name not in best.get(place, ())]:
            print(f"{place}: write into {written}: {', '.join(won)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
