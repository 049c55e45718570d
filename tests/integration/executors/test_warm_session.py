"""What a driver does once in a process is done before the session's sandbox closes."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from egpu.adapters.native import path
from egpu_sim.machines.machine import Machine
from support.remote_gpu import Executor, remote
from support.repository import ROOT
from support.simulated_gpu import Program, environment, run
from support.waiting import DEADLINE_SECONDS, wait_until
from support.wrapped_driver import WrappedDriver, wrap

CARDS = ("T4", 1)
SOURCE = ROOT / "tests/integration/programs/cold_driver.c"


@pytest.fixture
def cold(sim: Machine, tmp_path: Path) -> WrappedDriver:
    """The simulated machine's driver, which starts as some real ones do."""
    return wrap(sim, tmp_path / "cold", SOURCE, f'-DCACHE="{tmp_path / "cache"}"')


def test_a_driver_that_makes_files_and_sockets_at_its_first_context_and_module(
    cold: WrappedDriver, tmp_path: Path
) -> None:
    with remote(cold, tmp_path, "shm") as (client, _, _):
        done = subprocess.run(
            [str(path("samples/egpu-sample-vectoradd"))],
            env=environment(client), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False,
        )  # fmt: skip
        assert "0 wrong: ok" in done.stdout, done.stderr


COUNTING: Final = ROOT / "tests/integration/programs/counting_driver.c"
MADE, DESTROYED = "context made", "context destroyed"


def contexts(executor: Executor) -> list[str]:
    return [line for line in executor.stderr().splitlines() if line in (MADE, DESTROYED)]


@pytest.fixture
def counting(sim: Machine, tmp_path: Path) -> WrappedDriver:
    return wrap(sim, tmp_path / "counting", COUNTING)


def test_a_program_gets_the_context_that_warmed_its_session(counting: WrappedDriver, tmp_path: Path) -> None:
    """A context takes long to make. Flags are for the next one."""
    with remote(counting, tmp_path / "plain", "shm") as (client, executor, _):
        assert (
            run(client, "context(); say([ok(d.cuDevicePrimaryCtxRelease(0)), name(d.cuCtxSynchronize())])")[0] is None
        )
        assert contexts(executor) == [MADE, DESTROYED]
    with remote(counting, tmp_path / "flags", "shm") as (client, executor, _):
        flags = "ok(d.cuInit(0)); ok(d.cuDevicePrimaryCtxSetFlags(0, 4)); context(); say(ok(d.cuCtxGetFlags()) & 4)"
        assert run(client, flags) == 4
        assert contexts(executor) == [MADE, DESTROYED, MADE]


def test_a_program_that_asks_for_no_context_keeps_none(counting: WrappedDriver, tmp_path: Path) -> None:
    with (
        remote(counting, tmp_path, "shm") as (client, executor, _),
        Program(client, "ok(d.cuInit(0)); say(ok(d.cuDeviceGetCount())); wait()") as program,
    ):
        assert program.hear() == 1
        assert contexts(executor)[:1] == [MADE]
        wait_until(lambda: contexts(executor) == [MADE, DESTROYED])
