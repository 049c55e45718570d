"""Programs that people use, in a slice of a simulated card and over the pool: what the README's table says runs.

Each lives on the driver's API and gives it PTX. What does not (PyTorch, CuPy) is in `tests/gpu`, for real cards.
"""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Generator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines import machine as simulator
from support import forked_commands
from support.local_pool import LocalPool, local_pool
from support.long import or_long
from support.repository import ROOT
from support.simulated_gpu import source
from support.solver_programs import LEAST_SQUARES

SECONDS = 300.0
STEPS = 4
"""Of a training; what is compared has all of its bits."""
PROGRAMS = ROOT / "tests/integration/programs"
KERNELS = ["arrays", "shared memory", "atomics", "reduce", "vectorize", "random numbers"]
PARTS = ["templates", "own pool", "events", "properties"]
"""Of cuda.core's examples."""
LOCAL_PARTS = ["graph", "pinned pool", "managed pool"]
"""Which need memory of the program's machine, or user objects of graphs, and so a card of that machine."""

Runner = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = pytest.mark.timeout(2 * SECONDS)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Nothing compiled is kept between programs, and NVRTC is where its wheel put it."""
    cuda = find_spec("nvidia.cu13")
    assert cuda is not None
    assert cuda.submodule_search_locations
    nvrtc = Path(next(iter(cuda.submodule_search_locations))) / "lib/libnvrtc.so.13"
    assert nvrtc.exists()
    cache = str(tmp_path_factory.mktemp("cache"))
    return {**os.environ, "NVRTC_PATH": str(nvrtc), "CACHELEVEL": "0", "XDG_CACHE_HOME": cache}


def runner(environment: dict[str, str], *before: str) -> Runner:
    def run(*command: object, options: Sequence[str] = (), **more: str) -> subprocess.CompletedProcess[str]:
        egpu = ["run", *before, *options, "--memory", "1GiB", "--"]
        program = [sys.executable, *map(str, command)]
        return forked_commands.run([*egpu, *program], env={**environment, **more}, timeout=SECONDS)

    return run


@pytest.fixture(scope="module")
def in_slice(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Generator[Runner]:
    state = tmp_path_factory.mktemp("state")
    yield runner(environment, "--simulate", "A100-80G", "--state-dir", str(state))
    for description in state.glob("*/machine/machine.json"):
        simulator.destroy(simulator.open_machine(description.parent))


@pytest.fixture(scope="module")
def pool() -> Generator[LocalPool]:
    with local_pool(tls=False) as pool:
        pool.broker()
        pool.serve("one")
        yield pool


@pytest.fixture(scope="module")
def over_the_pool(environment: dict[str, str], pool: LocalPool) -> Runner:
    return runner(environment, "--pool", f"127.0.0.1:{pool.port}", *pool.flags("client", "ann"))


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What was said on stderr but which lease it is."""
    return [line for line in done.stderr.splitlines() if not line.startswith("lease lease-")]


@pytest.mark.parametrize("renderer", ["CUDA:PTX", "CUDA:CUDA"], ids=["PTX", "NVRTC"])
def test_tinygrad_trains_to_the_same_loss_bit_for_bit(in_slice: Runner, over_the_pool: Runner, renderer: str) -> None:
    """With the graphs of its JIT."""
    train = ROOT / "examples/train.py"
    done = [run(train, STEPS, DEV=renderer) for run in (in_slice, over_the_pool)]
    assert [(each.returncode, complaints(each)) for each in done] == [(0, [])] * 2
    losses = [float(line.split()[-1]) for line in done[0].stdout.splitlines() if line.startswith("step")]
    assert losses[-1] < losses[0]
    assert done[0].stdout == done[1].stdout


@pytest.mark.parametrize("where", ["in_slice", "over_the_pool"])
def test_six_kernels_of_numba_are_right(request: pytest.FixtureRequest, where: str) -> None:
    run: Runner = request.getfixturevalue(where)
    done = run("-W", "ignore", PROGRAMS / "numba_six.py")
    assert (done.returncode, complaints(done)) == (0, [])
    assert json.loads(done.stdout) == dict.fromkeys(KERNELS, True)


LINKING = """
from numba import cuda
@cuda.jit(link=[__file__.replace(".py", ".o")])
def kernel(): pass
kernel[1, 1]()
"""


def built_in_numba(run: Runner, program: Path) -> subprocess.CompletedProcess[str]:
    """Run a program of numba without numba-cuda, whose .pth file -S ignores."""
    return run("-S", "-W", "ignore", program, PYTHONPATH=sysconfig.get_path("purelib"))


@pytest.mark.parametrize(
    ("program", "said"),
    [("numba_six.py", json.dumps(dict.fromkeys(KERNELS, True))), ("numba_prints.py", "thread 1 has 0.250000 of it")],
)
def test_the_cuda_target_inside_numba_runs(in_slice: Runner, program: str, said: str) -> None:
    done = built_in_numba(in_slice, PROGRAMS / program)
    assert (done.returncode, complaints(done)) == (0, [])
    assert said in done.stdout


def test_the_cuda_target_inside_numba_names_the_package_that_links(in_slice: Runner, tmp_path: Path) -> None:
    (tmp_path / "linking.py").write_text(LINKING)
    done = built_in_numba(in_slice, tmp_path / "linking.py")
    assert "install numba-cuda" in done.stderr.splitlines()[-1]


PRINTING: Final = [("in_slice", []), *or_long([], [("over_the_pool", ["--ptx"])])]
"""Over the pool test_prints.py prints, and other tests run numba."""


@pytest.mark.parametrize(("where", "options"), PRINTING)
def test_kernels_of_numba_print(request: pytest.FixtureRequest, where: str, options: list[str]) -> None:
    run: Runner = request.getfixturevalue(where)
    done = run("-W", "ignore", PROGRAMS / "numba_prints.py", options=options)
    assert (done.returncode, complaints(done)) == (0, [])
    assert sorted(done.stdout.splitlines()) == [f"thread {i} has {i / 4:f} of" + " it" * (i % 2) for i in range(4)]


@pytest.mark.parametrize(("where", "parts"), [("in_slice", PARTS + LOCAL_PARTS), ("over_the_pool", PARTS)])
def test_what_cuda_core_s_examples_do_is_right(request: pytest.FixtureRequest, where: str, parts: list[str]) -> None:
    run: Runner = request.getfixturevalue(where)
    done = run("-W", "ignore", PROGRAMS / "cuda_core_parts.py", *parts)
    assert (done.returncode, complaints(done)) == (0, [])
    assert json.loads(done.stdout) == dict.fromkeys(parts, True)


def test_least_squares_come_to_the_same_bit_for_bit(in_slice: Runner, over_the_pool: Runner) -> None:
    """By cuSOLVER and cuBLAS; what is right the program says itself."""
    done = [run("-c", source(LEAST_SQUARES)) for run in (in_slice, over_the_pool)]
    assert [(each.returncode, complaints(each)) for each in done] == [(0, [])] * 2
    assert done[0].stdout == done[1].stdout


def test_numba_s_plug_in_does_not_displace_another(over_the_pool: Runner) -> None:
    done = over_the_pool("-c", "", options=["--ptx"], NUMBA_CUDA_MEMORY_MANAGER="rmm.allocators.numba")
    assert done.returncode == 2
    assert "NUMBA_CUDA_MEMORY_MANAGER" in done.stderr


def test_in_a_slice_of_simulated_cards_what_is_set_stays(in_slice: Runner) -> None:
    names = ["NUMBA_CUDA_MEMORY_MANAGER", "TRITON_PTXAS_PATH", "XLA_FLAGS"]
    program = f"import os; print(*map(os.environ.get, {names}))"
    done = in_slice("-c", program, NUMBA_CUDA_MEMORY_MANAGER="rmm", XLA_FLAGS="-a")
    assert done.returncode == 0
    manager, assembler, *flags = done.stdout.split()
    assert (manager, flags) == ("rmm", ["-a", "--xla_gpu_autotune_level=0"])
    assert Path(assembler).name == "ptxas"
