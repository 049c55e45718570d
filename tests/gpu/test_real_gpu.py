"""The samples on a real NVIDIA GPU: bare, and inside a slice. Skipped, by name, where there is none."""

import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from egpu.adapters import native
from egpu.errors import ElasticGPUError

LIMIT_BYTES = 2 * 1024**3


def _no_gpu() -> str | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver on this machine"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the NVIDIA driver of this machine has no GPU"
    return None


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_no_gpu() is not None, reason=str(_no_gpu()))]


def sample(name: str, *flags: str, before: Sequence[str] = ()) -> dict[str, Any]:
    """Run a sample; its report."""
    try:
        program = str(native.path(f"samples/egpu-sample-{name}"))
    except ElasticGPUError as error:
        pytest.fail(str(error))
    done = subprocess.run(
        [*before, program, "--json", *flags], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def in_slice(core: int, memory: str) -> list[str]:
    return [sys.executable, "-m", "egpu", "run", "--core", str(core), "--memory", memory, "--"]


@pytest.mark.parametrize("name", ["vectoradd", "saxpy", "reduce", "matmul"])
def test_right_answers_bare_and_in_a_slice(name: str) -> None:
    assert sample(name)["ok"]
    assert sample(name, before=in_slice(50, "2GiB"))["ok"]


def test_the_slice_is_all_that_a_program_sees() -> None:
    (device,) = sample("info", before=in_slice(30, "2GiB"))["devices"]
    assert {device[key] for key in ("total", "memory_info_total", "nvml_total")} == {LIMIT_BYTES}


def test_memory_ends_at_the_limit() -> None:
    report = sample("memory", before=in_slice(30, "2GiB"))
    assert report["ok"], report
