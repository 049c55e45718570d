"""Memory limits of control groups on the simulated driver, by NVML as nvidia-ml-py has it; a directory is a group."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from egpu_sim.machines.machine import Machine, make_driver_dir
from support.simulated_gpu import Program, machine, run
from support.waiting import wait_until

MIB = 1 << 20
NVML = """
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
def limit(path, soft, hard):
    asked = n.c_nvmlSetMemoryLimits_v1_t(nameSpace=path.encode(), softLimit=soft, hardLimit=hard)
    try: n.nvmlDeviceSetMemoryLimits_v1(h, asked)
    except n.NVMLError as error: return type(error).__name__
def read(path):
    asked = n.c_nvmlGetMemoryLimits_v1_t(nameSpace=path.encode())
    try: n.nvmlDeviceGetMemoryLimits_v1(h, asked)
    except n.NVMLError as error: return type(error).__name__
    return [asked.softLimit >> 20, asked.hardLimit >> 20, asked.currentUsed >> 20]
"""
HOLDS = """
context()
said = [name(d.cuMemAlloc(64 << 20)) for _ in range(COUNT)]
free, total = ok(d.cuMemGetInfo())
n.nvmlInit()
seen = n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0))
say([said, free >> 20, total >> 20, seen.total >> 20]); wait()
"""


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("limits"), "T4", 1, context_mib=0, driver_mib=0) as made:
        yield made


@pytest.fixture
def group(tmp_path: Path) -> Path:
    made = tmp_path / "group"
    made.mkdir()
    return made


def inside(sim: Machine, group: Path, directory: Path) -> Machine:
    """The machine for programs of that group."""
    return replace(sim, driver_dir=make_driver_dir(sim, directory, sim.device_dir, group=group))


def nvml(sim: Machine, said: str) -> Any:
    return run(sim, NVML + f"say({said})")


def holds(count: int) -> str:
    return HOLDS.replace("COUNT", str(count))


def test_a_group_has_no_more_than_its_hard_limit_whatever_its_processes_do(
    sim: Machine, group: Path, tmp_path: Path
) -> None:
    assert nvml(sim, f"limit('{group}', 0, 256 << 20)") is None
    box = inside(sim, group, tmp_path / "driver")
    with Program(box, holds(3)) as first, Program(sim, holds(8)) as stranger:
        assert first.hear() == [["SUCCESS"] * 3, 64, 256, 256]
        assert stranger.hear()[0] == ["SUCCESS"] * 8
        assert nvml(sim, f"read('{group}')") == [0, 256, 192]
        with Program(box, holds(2)) as second:
            assert second.hear()[:2] == [["SUCCESS", "ERROR_OUT_OF_MEMORY".removeprefix("ERROR_")], 0]
        first.kill()
        wait_until(lambda: nvml(sim, f"read('{group}')") == [0, 256, 0])
    assert run(box, holds(1).replace("; wait()", ""))[0] == ["SUCCESS"]


def test_limits_are_given_back_by_hand_and_go_with_their_group(sim: Machine, group: Path) -> None:
    most = "n.NVML_DEVICE_MEMORY_LIMIT_MAX"
    assert nvml(sim, f"[read('{group}'), limit('{group}', 1 << 20, 2 << 20), read('{group}')]") == [
        "NVMLError_NotFound", None, [1, 2, 0],
    ]  # fmt: skip
    assert nvml(sim, f"[limit('{group}', 0, {most}), read('{group}')]") == [None, "NVMLError_NotFound"]
    assert list(group.iterdir()) == []


def test_what_is_no_limit_is_refused(sim: Machine, group: Path) -> None:
    wrong = f"[limit('{group}', 2, 1), limit('{group}', 0, 1 << 50), limit('{group}/none', 0, 1), read('{group}/none')]"
    assert nvml(sim, wrong) == [
        "NVMLError_InvalidArgument",
        "NVMLError_InvalidArgument",
        "NVMLError_OperatingSystem",
        "NVMLError_OperatingSystem",
    ]
