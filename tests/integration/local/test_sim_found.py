"""A simulated slice finds its driver as a real one does: by name, when it asks, and wherever it stands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from egpu.adapters import native
from egpu.adapters.programs.enter import refusal
from egpu_sim.machines import loader_cache
from egpu_sim.machines.machine import LIBRARIES, Machine, loader_files

CARDS = ("A100-80G", 1)
LOAD = """
import ctypes
ctypes.CDLL({name!r})
print(next(line.split()[-1] for line in open("/proc/self/maps") if {part!r} in line))
"""


def load(name: str, part: str, *options: str) -> str:
    """Which file a program with no environment at all gets for the library `name`."""
    command = [str(native.path("egpu-enter")), *options, "--clear-env", "--", sys.executable, "-S", "-c"]
    done = subprocess.run(
        [*command, LOAD.format(name=name, part=part)], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.skipif(bool(refusal()), reason="no private mounts on this machine")
def test_the_loader_s_cache_leads_to_the_driver_and_to_everything_else(sim: Machine) -> None:
    ((target, file),) = loader_files(sim.driver_dir).items()
    options = ("--ro-bind", str(file), str(target))
    for name in LIBRARIES:
        assert load(name, name.split(".so")[0], *options) == os.path.realpath(sim.driver_dir / name)
    assert load("libutil.so.1", "libutil", *options) == load("libutil.so.1", "libutil")
    assert target.read_bytes() != file.read_bytes(), "the machine's own cache stays as it is"


def test_the_cache_keeps_the_order_by_which_the_loader_searches(tmp_path: Path) -> None:
    before = loader_cache.read(loader_cache.SYSTEM_CACHE.read_bytes())
    written = loader_cache.with_libraries(tmp_path, ["libcuda.so.1"])
    assert written is not None
    after = loader_cache.read(written)
    assert [each for each in after if each.name != "libcuda.so.1"] == [
        each for each in before if each.name != "libcuda.so.1" and not each.hardware
    ]
    assert [each.path for each in after if each.name == "libcuda.so.1"] == [str(tmp_path / "libcuda.so.1")]


@pytest.mark.parametrize("content", [b"", b"glibc-ld.so.cache1.1" + b"\xff" * 40, b"something else"])
def test_a_cache_of_another_kind_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cache").write_bytes(content)
    assert loader_cache.with_libraries(tmp_path, LIBRARIES, cache=tmp_path / "cache") is None
    assert loader_cache.with_libraries(tmp_path, LIBRARIES, cache=tmp_path / "none") is None
