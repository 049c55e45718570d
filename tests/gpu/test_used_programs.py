"""Programs that people use, in a slice of a real GPU and on a lease of it; each skipped, by name, where it is not.

`EGPU_TEST_PYTHON` names the Python that has them, if it is not the one of the tests.
"""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from egpu.adapters.pool import scratch
from egpu.cli.trial import Trial
from egpu.laptop.machines import find_machine
from support.real_gpu import in_slice, no_gpu

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = os.environ.get("EGPU_TEST_PYTHON", sys.executable)
SECONDS = 300.0
"""vLLM compiles before it answers."""

IN_A_SLICE = (
    "torch_eager", "torch_compile", "torch_graphs", "torch_dataloader", "torch_ddp", "vllm_serving", "triton_kernel",
    "jax_jit", "cupy_kernels", "numba_kernel", "cuda_core", "llama_cpp",
)  # fmt: skip
ON_A_LEASE = ("numba_kernel", "cuda_core")
"""Those that live on the driver's API alone: NVIDIA's runtime library is not carried to another machine."""

needs_gpu = pytest.mark.skipif(bool(no_gpu()), reason=no_gpu())
in_time = pytest.mark.timeout(SECONDS + 60)


@pytest.fixture(scope="module")
def pool() -> Generator[Sequence[str]]:
    """A pool of this machine's cards; what `egpu run` is to say for a lease of it."""
    machine = find_machine(None)
    with scratch.directory("egpu-test-", scratch.short_directory()) as directory:
        trial = Trial(machine=machine, card=machine.cards()[0], directory=directory, environment=os.environ, slices=())
        with trial.pool() as where:
            yield where


def answers(name: str, before: Sequence[str]) -> None:
    """Run a program to its end: it says that it is right, or what it lacks."""
    done = subprocess.run(
        [*before, PYTHON, str(PROGRAMS / f"{name}.py")], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    if "skip" in said:
        pytest.skip(f"{name}: {said['skip']}")
    assert said["ok"], said


@pytest.mark.gpu
@needs_gpu
@in_time
@pytest.mark.parametrize("name", IN_A_SLICE)
def test_it_is_right_in_a_slice(name: str) -> None:
    answers(name, in_slice(50, "8GiB"))


@pytest.mark.gpu
@needs_gpu
@in_time
@pytest.mark.parametrize("name", ON_A_LEASE)
def test_it_is_right_on_a_lease(name: str, pool: Sequence[str]) -> None:
    answers(name, in_slice(50, "8GiB", *pool))


def test_every_program_is_tried() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} == {*IN_A_SLICE, "program"}
