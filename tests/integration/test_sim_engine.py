"""The native test programs of the simulator."""

import subprocess
from pathlib import Path

import pytest

from egpu.adapters import native
from egpu.errors import NativeMissing
from support.simulated_gpu import environment, machine


def program(name: str) -> Path:
    try:
        return native.path(f"tests/{name}")
    except NativeMissing:
        pytest.skip("the native tests are not built (they are not part of an installed package)")


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
