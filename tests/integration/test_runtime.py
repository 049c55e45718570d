"""CUDA C++ programs over our runtime: bare on simulated cards, in a slice, and over the pool."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from egpu.adapters.native import path
from egpu.adapters.simulator.machine import Machine, destroy, open_machine
from support.remote_gpu import Transport, remote
from support.simulated_gpu import environment
from support.waiting import DEADLINE_SECONDS

CARDS = ("A100-80G", 2)

SOURCES: Final = Path(__file__).with_name("programs") / "runtime"
NAMES: Final = sorted(source.stem for source in SOURCES.glob("*.cu"))
HEADERS: Final = ("check.h", "atomic", "thread", "sys/wait.h", "unistd.h")


def together() -> str:
    """One source of all programs, each in a namespace: compiling them one by one takes minutes."""
    lines = [*(f"#include <{header}>" for header in HEADERS), "#define main run"]
    for name in NAMES:
        lines += [f"namespace {name} {{", f'#include "{name}.cu"', "}"]
    lines += ["#undef main", "static const struct { const char *name; int (*run)(); } programs[] = {"]
    lines += [f'{{"{name}", {name}::run}},' for name in NAMES]
    return "\n".join([*lines, "};", '#include "main.h"', ""])


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that runs them all; its kernels are compressed PTX, as nvcc leaves them."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    folder = tmp_path_factory.mktemp("runtime")
    (folder / "all.cu").write_text(together())
    flags = ["-cudart", "shared", "-arch=compute_75", "-I", str(SOURCES), "-o", str(folder / "all")]
    subprocess.run([nvcc, *flags, str(folder / "all.cu")], check=True, timeout=DEADLINE_SECONDS * 4)
    return folder / "all"


def outcomes(command: list[str], env: dict[str, str]) -> dict[str, str]:
    """By program how it went."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_SECONDS * 2, check=False)
    print(done.stdout, done.stderr)  # shown when the test fails: which check it was
    return dict(line.rsplit(" ", 1) for line in done.stdout.splitlines() if line.endswith((" ok", " failed")))


def test_programs_on_a_simulated_card(sim: Machine, programs: Path) -> None:
    assert outcomes([str(programs)], environment(sim.driver_dir)) == dict.fromkeys(NAMES, "ok")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A directory for the slices and the machine of one test."""
    yield tmp_path / "state"
    for description in (tmp_path / "state").glob("*/machine/machine.json"):
        destroy(open_machine(description.parent))


def test_programs_in_a_slice_without_an_environment(sim: Machine, programs: Path, state: Path) -> None:
    run = [sys.executable, "-m", "egpu", "run", "--state-dir", str(state), "--simulate", "A100-80G", "--core", "50"]
    command = [*run, "--", "env", "-i", str(programs)]
    assert outcomes(command, environment(sim.driver_dir)) == dict.fromkeys(NAMES, "ok")


@pytest.mark.parametrize("transport", ["shm", "tcp", "tls"])
def test_programs_over_the_pool(sim: Machine, programs: Path, tmp_path: Path, transport: Transport) -> None:
    with remote(sim, tmp_path, transport) as (client, _, _):
        assert outcomes([str(programs)], environment(client)) == dict.fromkeys(NAMES, "ok")


PROPERTIES: Final = """
import ctypes, sys
runtime = ctypes.CDLL(sys.argv[1])
said = ctypes.create_string_buffer(2048)
assert runtime[sys.argv[2]](said, 0) == 0
print(said.raw[:256].rstrip(b"\\0").decode(), int.from_bytes(said.raw[288:296], "little"))
"""


def test_each_major_version_has_its_structure_of_device_properties(sim: Machine) -> None:
    said = [
        subprocess.run(
            [sys.executable, "-c", PROPERTIES, str(path(f"runtime/libcudart.so.{major}")), function],
            env=environment(sim.driver_dir),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for major, function in ((12, "cudaGetDeviceProperties_v2"), (13, "cudaGetDeviceProperties"))
    ]
    assert said[0] == said[1] == f"{sim.cards[0].model} {sim.cards[0].memory_mib << 20}\n"
