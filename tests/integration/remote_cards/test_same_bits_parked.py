"""Programs of others, unmodified, print the same bits where their slice is parked and woken at random moments: beside
the card (vCUDA), in an executor on the same machine (qGPU), and in one over a network (the pool)."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from egpu.adapters.native import path as native_path
from egpu_sim.machines.machine import Machine
from support.long import or_long
from support.parked_at_random import run_parked
from support.parking_slices import MIB, Slice
from support.remote_gpu import Transport, remote
from support.repository import ROOT
from support.simulated_gpu import environment

CARDS = ("A100-40G", 1)
PROGRAMS = ROOT / "tests/integration/programs"
TRANSPORTS: Final[Mapping[str, Transport]] = {"qgpu": "shm", "pool": "tcp"}
WANTED_PARKS: Final = or_long(1, 20)
TRIES: Final = 16 * WANTED_PARKS
"""A program that ends soon may end before it is parked."""


def sample(name: str, *flags: str) -> list[str]:
    return [str(native_path(f"samples/egpu-sample-{name}")), "--json", *flags]


COMMANDS: Final = {
    "vectoradd": sample("vectoradd", "--n", "1000003"),
    "saxpy": sample("saxpy", "--n", "600011", "--rounds", "8"),
    "reduce": sample("reduce", "--n", "1000003"),
    "tinygrad": [sys.executable, str(PROGRAMS / "tinygrad_wide.py")],
    "numba": [sys.executable, "-W", "ignore", str(PROGRAMS / "numba_large.py")],
}
CASES: Final = or_long(
    [("vcuda", "tinygrad"), ("vcuda", "saxpy"), ("qgpu", "numba"), ("pool", "tinygrad")],
    [(where, what) for where in ("vcuda", *TRANSPORTS) for what in COMMANDS],
)


@contextlib.contextmanager
def place(sim: Machine, folder: Path, where: str) -> Generator[tuple[Path, dict[str, str]]]:
    """A parkable slice there, and the environment of its programs."""
    folder.mkdir()
    mine = Slice(sim, folder / "slice", limit=256 * MIB)
    cuda = find_spec("nvidia.cu13")
    assert cuda is not None
    assert cuda.submodule_search_locations
    tools = {
        "DEV": "CUDA:PTX", "CACHELEVEL": "0", "XDG_CACHE_HOME": str(folder / "cache"),
        "CUDA_HOME": next(iter(cuda.submodule_search_locations)), "HOME": os.environ["HOME"],
    }  # fmt: skip
    if where == "vcuda":
        yield mine.directory, environment(sim.driver_dir, mine.environment | tools)
        return
    arguments = ("--slice", str(mine.directory), "--grace", "1")
    with remote(sim, folder, TRANSPORTS[where], *arguments, env=mine.environment) as (client, _, _):
        yield mine.directory, environment(client, tools)


@pytest.mark.timeout(or_long(600, 3600))
@pytest.mark.parametrize(("where", "what"), CASES)
def test_parked_at_random_moments_it_prints_the_same_bits(sim: Machine, tmp_path: Path, where: str, what: str) -> None:
    command = COMMANDS[what]
    bare = environment(sim.driver_dir, {"DEV": "CUDA:PTX", "CACHELEVEL": "0"})
    plain = subprocess.run(command, env=bare, check=True, capture_output=True, text=True, timeout=300).stdout
    parks = 0
    with place(sim, tmp_path / where, where) as (directory, said):
        for seed in range(TRIES):
            done = run_parked(command, said, directory, seed)
            assert done.output == plain
            parks += done.parks
            if parks >= WANTED_PARKS:
                break
    assert parks >= WANTED_PARKS
