# ruff: noqa: E402  the path is set before the imports
"""Walk the CUDA calls of PyTorch, CuPy, llama.cpp and vLLM on a simulated card that skips their compiled kernels.

    scripts/wheel_walks.py NAME --python PYTHON [--place PLACE] [--record]

PYTHON is an interpreter that has the package; `make walks` makes them. Each program runs bare, in a slice and over a
pool. Calls are right there and numbers are not: a step goes through if nothing but its numbers is wrong. It fails if a
step that is in scripts/wheel_walks.yaml does not go through. With --record it keeps what it found for the tables in
docs/reference/programs.md and docs/reference/program-calls.md, which `make generate` writes.
"""

import argparse
import contextlib
import dataclasses
import datetime
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
from pathlib import Path
from typing import Any, Final

import counting_driver
import yaml
from walk_records import THROUGH, Walk, store

from egpu_sim.machines import environment, machine

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.local_pool import FAR, local_pool

CARD: Final = "A100-80G"
SLICE: Final = ("--memory", "8GiB")
SECONDS: Final = 3600.0
"""For one process of a program: some minutes on two quiet cores, half an hour on busy ones."""
TRIES: Final = 8
"""How often a program starts anew behind a step at which its process ended."""
LOOK_SECONDS: Final = 0.5
LINGER: Final = ("sh", "-c", '"$@"; status=$?; sleep 3; exit $status', "sh")
"""Keeps a lease, and so the log of its executor, until it has been read."""

REFUSED: Final = re.compile(
    r"^egpu(?:-sim|-executor)?: .*(?:not supported|not simulated|cannot be loaded|this program needs).*$", re.MULTILINE
)
FOLDERS: Final = re.compile(r"(?<!\S)/(?:[^/\s]+/)+")
ENDED: Final = re.compile(
    r"a session ends after (\d+) calls: (\d+) bytes in, (\d+) bytes out, (\d+) images, (\d+) kernels"
)

Run = Callable[[Sequence[str]], "Walk"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; return the exit code."""
    walks: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    parser = argparse.ArgumentParser(description="Walk the CUDA calls of programs that bring compiled kernels.")
    parser.add_argument("name", choices=sorted(walks))
    parser.add_argument("--python", required=True, type=Path, help="an interpreter that has the package")
    parser.add_argument("--place", choices=list(PLACES), action="append", help="default: all")
    parser.add_argument("--record", action="store_true", help="keep what was found for the documents")
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
        tell(options.name, place, found[place])
        if options.record:
            version = version_of(walk["package"], options.python)
            today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
            store(options.name, version=version, date=today, found={place: found[place]})
    return verdict(found, walk.get("through", ()))


def tell(name: str, place: str, walk: Walk) -> None:
    """Print how a walk went."""
    lost = walk.lost()
    lines = [f"{name}, {place}: {len(walk.steps) - len(lost)} of {len(walk.steps)} steps go through"]
    lines += [f"    {step}: {error}" for step, error in lost.items()]
    lines += [f"    {walk.figures()}", *(f"    {line}" for line in walk.refused)]
    print(*lines, sep="\n", flush=True)


def version_of(package: str, python: Path) -> str:
    """Return the version of a Python package of an interpreter, or of the file of an npm package."""
    if package.endswith(".json"):
        return json.loads((ROOT / package).read_text())["version"]
    ask = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    return done.stdout.strip()


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
    if began or (status != 0 and all(error == THROUGH for error in found.values())):
        found[began or "start"] = f"the process ended with status {status}"
    return found


def outcome(said: Mapping[str, Any]) -> str:
    """Return `through` for a step that passed, or whose numbers alone are wrong."""
    error = str(said.get("error", ""))
    return THROUGH if said.get("ok") or error.startswith("AssertionError") else error[:200] or "no reason"


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
    """Return the lines that name what is not supported, without folders of this machine."""
    lines = (line.removesuffix(" (EGPU_SIM_VERBOSE=0 hides this line)") for line in REFUSED.findall(text))
    return list(dict.fromkeys(FOLDERS.sub("…/", line) for line in lines))


def verdict(found: Mapping[str, Walk], expected: Sequence[str]) -> int:
    """Return the exit code, after a line for each expected step that does not go through."""
    status = 0
    for place, walk in found.items():
        if lost := [step for step in expected if walk.steps.get(step) != THROUGH]:
            print(f"{place}: went through before, and do not now: {', '.join(lost)}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
