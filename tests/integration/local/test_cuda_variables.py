"""CUDA's environment variables in every place where a program runs: as native/variables.yaml says."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from egpu.adapters import native
from egpu.api import names
from egpu.core.admission import mutate_pod, validate_pod_create
from egpu_base.api.kubernetes import EnvVar
from egpu_sim.machines.machine import Machine
from support.objects import container, pod
from support.remote_gpu import remote
from support.simulated_gpu import machine, run, store

LISTED = yaml.safe_load((Path(__file__).parents[3] / "native" / "variables.yaml").read_text())
VARIABLES: list[dict[str, str]] = LISTED["variables"]
NAMES = [one["name"] for one in VARIABLES]
HARMLESS = {name: "0" for name in NAMES if not name.startswith("CUDA_MPS")} | {
    "CUDA_CACHE_PATH": "/nowhere", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_LOG_FILE": "/nowhere/log",
    "CUDA_COREDUMP_FILE": "/nowhere/core", "CUDA_MODULE_LOADING": "EAGER", "CUDA_LAUNCH_BLOCKING": "1",
    "CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_FORCE_PTX_JIT": "1", "CUDA_SCALE_LAUNCH_QUEUES": "4x",
}  # fmt: skip


def honoured(place: str) -> set[str]:
    return {one["name"] for one in VARIABLES if one.get(place) == "honoured"}


def read_by(library: Path) -> set[str]:
    """The variables whose names a library has in it. A linker stores a name that ends another text within that one."""
    content = library.resolve().read_bytes()
    return {name for name in NAMES if name.encode() + b"\0" in content}


def test_every_cell_is_a_known_word_or_a_reason() -> None:
    known = {"honoured", "passed on", *LISTED["reasons"]}
    assert {word for one in VARIABLES for place, word in one.items() if place != "name"} <= known
    assert len(set(NAMES)) == len(NAMES)
    assert all(
        {"pool", "simulated"} <= one.keys() <= {"name", "slice", "whole", "pool", "qgpu", "simulated"}
        for one in VARIABLES
    )


def test_drivers_of_ours_read_just_what_is_listed_as_honoured(sim: Machine) -> None:
    assert read_by(native.path("remote/libcuda.so.1")) == honoured("pool")
    assert read_by(sim.driver_dir / "libcuda.so.1") == honoured("simulated")


def test_a_slice_passes_everything_on(tmp_path: Path) -> None:
    """The interposer and `egpu run` change none of them, and read none."""
    shown = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('CUDA_')}))"
    command = [
        sys.executable,
        "-m",
        "egpu",
        "run",
        "--state-dir",
        str(tmp_path),
        "--simulate",
        "T4",
        "--memory",
        "1GiB",
    ]
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", shown],
        env={**os.environ, **HARMLESS}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    said: dict[str, Any] = json.loads(done.stdout)
    assert {name: said.get(name) for name in HARMLESS} == HARMLESS
    assert read_by(native.path("libegpu-interposer.so")) == set()


@pytest.mark.parametrize("asks", [{names.GPU_CORE: 20}, {names.NVIDIA_GPU: 1}, {names.QGPU_CORE: 20}, {names.MPS: 1}])
def test_a_pod_keeps_everything_that_it_sets(asks: dict[str, int]) -> None:
    app = replace(container("app", asks), env=[EnvVar(name=name, value="0") for name in NAMES])
    one = pod("p", app)
    assert validate_pod_create(one, {}, {}) == []
    changed = [step["path"] for step in mutate_pod(one, {}, {}) if "/env" in step["path"]]
    assert set(changed) <= {"/spec/containers/0/env/-"}, "variables are added, and none is changed"


ANSWER = """
context()
f = function(STORE, "store")
at = ok(d.cuMemAlloc(4096))
ok(launch(f, 1, 1, at, (7, ctypes.c_uint32)))
ended = name(d.cuStreamQuery(0))
ok(d.cuCtxSynchronize())
say([ok(d.cuDeviceGetCount()), ended])
"""


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("machine"), "T4", 2) as made:
        yield made


@pytest.mark.parametrize("place", ["simulated", "pool"])
def test_programs_run_with_every_variable_set(sim: Machine, tmp_path: Path, place: str) -> None:
    """CUDA_VISIBLE_DEVICES leaves one card, and CUDA_LAUNCH_BLOCKING no running kernel; the rest has no effect."""
    code = f"STORE = {store(400_000)!r}\n{ANSWER}"
    with remote(sim, tmp_path, "shm") as (client, _, _):
        on = client if place == "pool" else sim.driver_dir
        assert run(on, code) == [2, "NOT_READY"]
        assert run(on, code, HARMLESS) == [1, "SUCCESS"]
