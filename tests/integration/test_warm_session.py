"""What a driver does once in a process is done before the session's sandbox closes."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from egpu.adapters.native import path
from egpu.adapters.simulator.machine import Machine
from support.remote_gpu import remote
from support.repository import ROOT
from support.simulated_gpu import environment
from support.slices import compile_c
from support.waiting import DEADLINE_SECONDS

CARDS = ("T4", 1)
SOURCE = ROOT / "tests/integration/programs/cold_driver.c"


@dataclass(frozen=True)
class ColdDriver:
    """The simulated machine's driver, which starts as some real ones do."""

    driver_dir: Path


@pytest.fixture
def cold(sim: Machine, tmp_path: Path) -> ColdDriver:
    real = sim.driver_dir / "libcuda.so.1"
    made = ColdDriver(tmp_path / "cold")
    made.driver_dir.mkdir()
    for entry in sim.driver_dir.iterdir():
        (made.driver_dir / entry.name).symlink_to(os.readlink(entry) if entry.is_symlink() else entry)
    library = made.driver_dir / real.name
    library.unlink()
    where = (f'-DDRIVER="{real}"', f'-DCACHE="{tmp_path / "cache"}"')
    compile_c(
        library,
        "-shared",
        "-fPIC",
        *where,
        SOURCE,
        "-Wl,--no-as-needed",
        real,
        f"-Wl,-rpath,{sim.driver_dir}",
        flags=(),
    )
    return made


def test_a_driver_that_makes_files_and_sockets_at_its_first_context_and_module(
    cold: ColdDriver, tmp_path: Path
) -> None:
    with remote(cold, tmp_path, "shm") as (client, _, _):
        done = subprocess.run(
            [str(path("samples/egpu-sample-vectoradd"))],
            env=environment(client), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False,
        )  # fmt: skip
        assert "0 wrong: ok" in done.stdout, done.stderr
