"""NVML readers that people use, unchanged, in a slice beside another tenant's: they show the slice and nothing else.

`gpustat` (MIT) and `nvitop` (GPL-3.0 as a program) are run as the separate programs that they are: nothing of them is
imported here or shipped.
"""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egpu_sim.machines import machine as simulator
from support import forked_commands
from support.waiting import DEADLINE_SECONDS

EGPU = [sys.executable, "-c", "from egpu.cli import main; main()"]

# Holds so many MiB of the slice, then runs a command in it and passes on what that says; without one it waits.
HOLD = """
    import os, subprocess, sys
    from cuda.bindings import driver

    driver.cuInit(0)
    _, context = driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])
    driver.cuCtxSetCurrent(context)
    assert driver.cuMemAlloc(int(sys.argv[1]) << 20)[0] == driver.CUresult.CUDA_SUCCESS
    print(os.getpid(), flush=True)
    if sys.argv[2:]:
        sys.exit(subprocess.run(sys.argv[2:]).returncode)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("readers")
    (directory / "hold.py").write_text(textwrap.dedent(HOLD))
    yield directory
    for description in directory.glob("state/*/machine/machine.json"):
        simulator.destroy(simulator.open_machine(description.parent))


def command(place: Path, memory: str, *arguments: object) -> list[str]:
    sliced = ["run", "--state-dir", place / "state", "--simulate", "A100-80G", "--core", 30, "--memory", memory, "--"]
    return list(map(str, [*sliced, sys.executable, place / "hold.py", *arguments]))


@pytest.fixture(scope="module")
def neighbour(place: Path) -> Iterator[int]:
    """The pid of a program in another slice of the same card."""
    child = subprocess.Popen(
        [*EGPU, *command(place, "4GiB", 3000)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout
    yield int(child.stdout.readline())
    child.communicate(timeout=DEADLINE_SECONDS)


def read(place: Path, *reader: str) -> tuple[int, str]:
    """The pid of the program that holds memory, and what the reader says beside it."""
    done = forked_commands.run(
        command(place, "2GiB", 256, str(Path(sys.executable).parent / reader[0]), *reader[1:]),
        timeout=DEADLINE_SECONDS,
        env={**os.environ, "COLUMNS": "120", "LINES": "60", "TERM": "xterm"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pid, _, said = done.stdout.partition("\n")
    return int(pid), said


@pytest.mark.usefixtures("neighbour")
def test_gpustat_shows_the_slice(place: Path) -> None:
    pid, said = read(place, "gpustat", "--json")
    (card,) = json.loads(said)["gpus"]
    assert (card["name"], card["memory.total"], card["memory.used"]) == ("NVIDIA A100-SXM4-80GB", 2048, 256)
    processes: list[dict[str, Any]] = card["processes"]
    assert [(process["pid"], process["gpu_memory_usage"]) for process in processes] == [(pid, 256)]


def test_nvitop_shows_the_slice(place: Path, neighbour: int) -> None:
    pid, said = read(place, "nvitop", "--once", "--no-unicode")
    assert "256.0MiB / 2048MiB" in said, said
    assert f" {pid} " in said
    assert f" {neighbour} " not in said
