"""The samples on a real NVIDIA GPU: bare, and inside a slice. Skipped, by name, where there is none."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from egpu.adapters import native
from egpu_base.errors import ElasticGPUError
from support.real_gpu import in_slice, no_gpu

LIMIT_BYTES = 2 * 1024**3


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(no_gpu()), reason=no_gpu())]


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
