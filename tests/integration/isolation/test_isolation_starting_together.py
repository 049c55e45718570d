"""Programs of two slices that start together on one card: each is charged its own memory, and not its neighbour's."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines.machine import Machine
from integration.isolation.test_isolation_contexts import CONTEXT, PRELUDE, Slice
from support.repository import ROOT
from support.simulated_gpu import Program, machine, variables
from support.waiting import wait_until
from support.wrapped_driver import wrap

MEETING: Final = ROOT / "tests/integration/programs/meeting_driver.c"
OURS, THEIRS = 16, 40
"""MiB of the modules that the two load."""


def starts(mib: int) -> str:
    """Return a program that starts, loads a module of so many MiB, and says what its slice uses."""
    image = variables(mib << 20) + "\0"
    return f"context(); ok(d.cuModuleLoadData({image!r}.encode())); say(used()); wait()"


def offsets(card: Machine, function: str) -> list[str]:
    """Return where the driver has the functions that MEETING replaces."""
    driver = card.driver_dir / "libcuda.so.1"
    symbols = subprocess.run(["nm", "-D", "--defined-only", driver], capture_output=True, text=True, check=True)
    at = {name: place for place, _, name in map(str.split, symbols.stdout.splitlines())}
    return [f"-DFUNCTION_AT=0x{at[function]}", f"-DASK_AT=0x{at['cuGetProcAddress_v2']}"]


@pytest.mark.parametrize("function", ["cuModuleLoadData", "cuDevicePrimaryCtxRetain"])
def test_a_neighbour_that_starts_meanwhile_pays_for_itself(tmp_path: Path, function: str) -> None:
    """The neighbour's whole start falls into one call of ours: into a load, or into our first context."""
    (meeting := tmp_path / "meeting").mkdir()
    with machine(tmp_path, "T4", context_mib=CONTEXT) as card:
        flags = (f"-DFUNCTION={function}", f'-DMEETING="{meeting}"', *offsets(card, function))
        driver = wrap(card, tmp_path / "driver", MEETING, *flags)
        ours, theirs = Slice(card, tmp_path / "ours"), Slice(card, tmp_path / "theirs")
        with Program(driver.driver_dir, PRELUDE + starts(OURS), ours.environment) as program:
            wait_until((meeting / "begun").exists)
            with theirs.program(starts(THEIRS)) as neighbour:
                assert neighbour.hear() == CONTEXT + THEIRS
                (meeting / "started").touch()
                assert program.hear() == CONTEXT + OURS
