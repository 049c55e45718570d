"""The native test programs of the simulator."""

import subprocess
from pathlib import Path

import pytest

from egpu_sim import native
from support.simulated_gpu import environment, machine

BUILD = Path(__file__).parents[3] / "build" / "simulator"
"""Where `make test-native` leaves them. A wheel has none of them."""


def program(name: str) -> Path:
    for directory in (*native.directories(), BUILD):
        if (found := directory / "tests" / name).exists():
            return found
    pytest.skip("the native tests are not built: make test-native")


def test_engine() -> None:
    done = subprocess.run([program("egpu_sim_engine_test")], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_threads_on_the_driver(tmp_path: Path) -> None:
    test = program("egpu_sim_driver_test")
    with machine(tmp_path, "T4", 1) as made:
        env = environment(made.driver_dir)
        done = subprocess.run([test], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_short_kernel_is_timed_as_such(tmp_path: Path) -> None:
    """Events cost a card next to nothing: neither they nor the threads of the simulation are part of what they time."""
    test = program("egpu_sim_driver_test")
    with machine(tmp_path, "T4", 1) as made:
        env = environment(made.driver_dir)
        done = subprocess.run([test, "timing"], env=env, capture_output=True, text=True, timeout=120, check=True)
    assert 5 <= float(done.stdout) < 6.5
