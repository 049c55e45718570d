# ruff: noqa: E402  the path is set before the imports
"""Walk the CUDA calls of PyTorch, CuPy, llama.cpp and vLLM on a simulated card that skips their compiled kernels.

    scripts/wheel_walks.py NAME --python PYTHON [--place PLACE]

PYTHON is an interpreter that has the package; `make walks` makes them. Each program runs bare, in a slice and over a
pool. Calls are right there and numbers are not: a step goes through if nothing but its numbers is wrong. At the end it
prints the rows of docs/reference/walks.md, and fails if a step that is in scripts/wheel_walks.yaml does not go through.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import counting_driver
import yaml

from egpu_sim.machines import environment, machine

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.local_pool import FAR, local_pool

CARD: Final = "A100-80G"
SLICE: Final = ("--memory", "8GiB")
SECONDS: Final = 1500.0
TRIES: Final = 8
"""How often a program starts anew behind a step at which its process ended."""
LOOK_SECONDS: Final = 0.5
LINGER: Final = ("sh", "-c", '"$@"; status=$?; sleep 3; exit $status', "sh")
"""Keeps a lease, and so the log of its executor, until it has been read."""

REFUSED: Final = re.compile(
    r"^egpu(?:-sim|-executor)?: .*(?:not supported|not simulated|cannot be loaded|this program needs).*$", re.MULTILINE
)
ENDED: Final = re.compile(
    r"a session ends after (\d+) calls: (\d+) bytes in, (\d+) bytes out, (\d+) images, (\d+) kernels"
)

Run = Callable[[Sequence[str]], "Walk"]


@dataclass
class Walk:
    """The way of a program through its steps in one place."""

    steps: dict[str, str] = field(default_factory=dict[str, str])
    """By step: `through`, or the error."""
    calls: Counter[str] = field(default_factory=Counter[str])
    """Of the card's driver, by function; empty over the pool."""
    sessions: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    """Over the pool: calls, bytes in, bytes out, images and kernels of each session."""
    refused: list[str] = field(default_factory=list[str])

    def figures(self) -> dict[str, int]:
        """Return the sums of the table's columns."""
        if not self.sessions:
            loads = ("cuLibraryLoadData", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary")
            functions = {name: count for name, count in self.calls.items() if name != counting_driver.KERNELS}
            return {
                "functions": len(functions), "calls": sum(functions.values()),
                "images": sum(self.calls[name] for name in loads), "kernels": self.calls[counting_driver.KERNELS],
            }  # fmt: skip
        calls, come, gone, images, kernels = (sum(column) for column in zip(*self.sessions, strict=True))
        return {"calls": calls, "bytes": come + gone, "images": images, "kernels": kernels}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; return the exit code."""
    walks: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    parser = argparse.ArgumentParser(description="Walk the CUDA calls of programs that bring compiled kernels.")
    parser.add_argument("name", choices=sorted(walks))
    parser.add_argument("--python", required=True, type=Path, help="an interpreter that has the package")
    parser.add_argument("--place", choices=list(PLACES), action="append", help="default: all")
    options = parser.parse_args(arguments)
    walk = walks[options.name]
    program = [
        str(options.python.absolute()),
        "-W",
        "ignore",
        *(str(ROOT / walk["program"]), *walk.get("arguments", ())),
    ]
    found: dict[str, Walk] = {}
    for place in options.place or PLACES:
        with PLACES[place]() as run:
            found[place] = walked(run, program, again=walk.get("again", False))
        said = found[place]
        wrong = {step: error for step, error in said.steps.items() if error != "through"}
        print(f"{options.name}, {place}: {len(said.steps) - len(wrong)} of {len(said.steps)} steps go through")
        print(*(f"    {step}: {error}" for step, error in wrong.items()), sep="\n")
        print(
            f"    {said.figures()}",
            f"    {dict(said.calls.most_common(12))}",
            *(f"    {line}" for line in said.refused),
            sep="\n",
            flush=True,
        )
    print(*rows(options.name, found), sep="\n")
    return verdict(found, walk.get("through", ()))


def walked(run: Run, program: Sequence[str], *, again: bool) -> Walk:
    """Run a program; where its process ends before its last step, and it can, start again behind that step."""
    whole, after = Walk(), ""
    for _ in range(TRIES if again else 1):
        part = run([*program, *(("--after", after) if after else ())])
        whole.steps |= part.steps
        whole.calls += part.calls
        whole.sessions += part.sessions
        whole.refused = list(dict.fromkeys([*whole.refused, *part.refused]))
        ended = [step for step, error in part.steps.items() if error.startswith("the process ended")]
        if not ended:
            break
        after = ended[0]
    return whole


def outcomes(output: str, status: int) -> dict[str, str]:
    """Return how each step ended that a program tells of, in JSON lines."""
    found: dict[str, str] = {}
    began = ""
    for line in output.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            said = json.loads(line)
            if isinstance(said, dict) and "begins" in said:
                began = said["begins"]
            elif isinstance(said, dict) and "step" in said:
                found[said["step"]] = outcome(said)
                began = "" if said["step"] == began else began
    if began or (status != 0 and all(error == "through" for error in found.values())):
        found[began or "start"] = f"the process ended with status {status}"
    return found


def outcome(said: Mapping[str, Any]) -> str:
    """Return `through` for a step that passed, or whose numbers alone are wrong."""
    error = str(said.get("error", ""))
    return "through" if said.get("ok") or error.startswith("AssertionError") else error[:200] or "no reason"


@contextlib.contextmanager
def counted_machine() -> Generator[tuple[dict[str, str], Callable[[], Counter[str]]]]:
    """Make a machine whose driver counts calls; give the environment that leads to it, and a way to read the counts."""
    with tempfile.TemporaryDirectory(prefix="egpu-") as made:
        folder, calls = Path(made, "driver"), Path(made, "calls")
        folder.mkdir()
        calls.mkdir()
        sim = machine.create_machine(Path(made, "machine"), CARD, 1, f"walk-{os.getpid()}", compiled="zero")
        try:
            for entry in sim.driver_dir.iterdir():
                if entry.name != counting_driver.NAME:
                    (folder / entry.name).symlink_to(entry.readlink() if entry.is_symlink() else entry)
            counting_driver.make(sim.driver_dir / counting_driver.NAME, folder)
            there = environment.environment_of(dataclasses.replace(sim, driver_dir=folder), os.environ)
            yield there | {counting_driver.FOLDER_VARIABLE: str(calls)}, lambda: counting_driver.read(folder, calls)
        finally:
            machine.destroy(sim)


@contextlib.contextmanager
def bare() -> Generator[Run]:
    """Run programs on a card, without a slice."""
    with counted_machine() as (there, counts):
        yield lambda program: run(program, there, counts)


@contextlib.contextmanager
def in_a_slice() -> Generator[Run]:
    """Run programs in a slice of the same card, which `egpu run` takes for a real one."""
    with counted_machine() as (there, counts), tempfile.TemporaryDirectory(prefix="egpu-") as state:
        egpu = [sys.executable, "-m", "egpu", "run", "--state-dir", state, *SLICE, "--"]
        yield lambda program: run([*egpu, *program], there, counts)


@contextlib.contextmanager
def over_the_pool() -> Generator[Run]:
    """Run programs on a card of a pool of this machine, over TCP."""
    with local_pool(tls=False) as pool:
        pool.environment = {"EGPU_SIM_COMPILED": "zero", "EGPU_REMOTE_VERBOSE": "1"}
        pool.broker()
        pool.serve("one", 1, "--collectives")
        options = ["run", "--pool", f"127.0.0.1:{pool.port}", *pool.flags("client", "ann"), *SLICE, "--"]

        def once(program: Sequence[str]) -> Walk:
            logs: dict[Path, str] = {}
            ended = threading.Event()
            reader = threading.Thread(target=follow, args=(pool.directory, logs, ended))
            reader.start()
            try:
                made = run([sys.executable, "-c", FAR, *options, *LINGER, *program], dict(os.environ), Counter)
            finally:
                ended.set()
                reader.join()
            text = "\n".join(logs.values())
            made.sessions = [tuple(map(int, each)) for each in ENDED.findall(text)]
            made.refused = list(dict.fromkeys([*made.refused, *refusals(text)]))
            return made

        yield once


PLACES: Final = {"bare": bare, "slice": in_a_slice, "pool": over_the_pool}


def follow(directory: Path, logs: dict[Path, str], ended: threading.Event) -> None:
    """Keep what executors write, until `ended`; an executor's log goes with its lease."""
    while not ended.is_set():
        for log in directory.glob("*/leases/*/log"):
            with contextlib.suppress(OSError):
                logs[log] = log.read_text(errors="replace") or logs.get(log, "")
        time.sleep(LOOK_SECONDS)


def run(program: Sequence[str], there: Mapping[str, str], counts: Callable[[], Counter[str]]) -> Walk:
    """Run a command once, and read what it did."""
    before = counts()
    try:
        done = subprocess.run(
            program, env=there, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=SECONDS, check=False,
        )  # fmt: skip
        output, errors, status = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        output, errors = ((each or b"").decode(errors="replace") for each in (error.stdout, error.stderr))
        status = 124
    print(errors[-6000:], file=sys.stderr)
    return Walk(outcomes(output, status), counts() - before, [], refusals(errors))


def refusals(text: str) -> list[str]:
    """Return the lines that name what is not supported."""
    return list(
        dict.fromkeys(line.removesuffix(" (EGPU_SIM_VERBOSE=0 hides this line)") for line in REFUSED.findall(text))
    )


def rows(name: str, found: Mapping[str, Walk]) -> list[str]:
    """Return rows of Markdown, one for each place."""
    lines: list[str] = []
    for place, walk in found.items():
        figures = walk.figures()
        through = sum(error == "through" for error in walk.steps.values())
        cells = [str(figures.get(column, "")) for column in ("functions", "calls", "bytes", "images", "kernels")]
        lines.append(f"| {name} | {place} | {through} of {len(walk.steps)} | {' | '.join(cells)} |")
    return lines


def verdict(found: Mapping[str, Walk], expected: Sequence[str]) -> int:
    """Return the exit code, after a line for each expected step that does not go through."""
    status = 0
    for place, walk in found.items():
        if lost := [step for step in expected if walk.steps.get(step) != "through"]:
            print(f"{place}: went through before, and do not now: {', '.join(lost)}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
