"""The sample programs that the project ships, on a simulated machine of two cards."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from egpu.adapters.native import path
from egpu_sim.machines.machine import Machine
from support.waiting import DEADLINE_SECONDS

CARDS = ("T4", 2)

MIB = 1 << 20


def sample(name: str, *flags: str, driver_dir: Path | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")}
    if driver_dir is not None:
        environment["LD_LIBRARY_PATH"] = str(driver_dir)
    command = [str(path(f"samples/egpu-sample-{name}")), *flags]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )


def answer(name: str, *flags: str, sim: Machine) -> dict[str, Any]:
    done = sample(name, "--json", *flags, driver_dir=sim.driver_dir)
    assert done.returncode == 0, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert (said["ok"], said["sample"]) == (True, name)
    return said


@pytest.mark.parametrize(
    ("name", "flags", "fields"),
    [
        ("vectoradd", ("--n", "70001"), {"n": 70001, "wrong": 0}),
        ("saxpy", ("--n=50001", "--rounds=4"), {"n": 50001, "rounds": 4, "wrong": 0}),
        ("reduce", ("--n", "30003"), {"sum": sum(i % 4 for i in range(30003))}),
        ("matmul", ("--n", "48"), {"n": 48, "wrong": 0}),
    ],
)
def test_computes_the_right_answer(sim: Machine, name: str, flags: tuple[str, ...], fields: dict[str, Any]) -> None:
    said = answer(name, *flags, sim=sim)
    assert {k: said[k] for k in fields} == fields
    assert said["device"] == "Tesla T4"


def test_prints_a_line_for_people(sim: Machine) -> None:
    done = sample("vectoradd", "--n", "1000", driver_dir=sim.driver_dir)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "vectoradd: 1000 elements on Tesla T4, 0 wrong: ok\n"


def test_memory_is_given_to_the_last_mebibyte(sim: Machine) -> None:
    said = answer("memory", "--chunk", "1GiB", sim=sim)
    assert said["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert said["free_before"] - said["free_after"] == said["given_bytes"]
    assert 0 <= said["free_after"] < 2 * MIB
    assert answer("memory", "--chunk", "3GiB", sim=sim)["given_bytes"] == said["given_bytes"]  # all of it came back


def test_spin_has_an_idle_card_to_itself(sim: Machine) -> None:
    said = answer("spin", "--us", "5000", "--seconds", "0.5", sim=sim)
    assert said["kernel_us"] >= 4990
    assert said["kernels"] > 0  # how many depends on how busy the machine is
    assert said["kernels"] * said["kernel_us"] * 1e-6 == pytest.approx(
        said["seconds"] * said["share_percent"] / 100, rel=0.01
    )


def test_info_shows_what_both_libraries_say(sim: Machine) -> None:
    said = answer("info", sim=sim)
    assert [d["uuid"] for d in said["devices"]] == [card.uuid for card in sim.cards]
    for device in said["devices"]:
        assert device["total"] == device["memory_info_total"] == device["nvml_total"]
        assert device["name"] == "Tesla T4"


def test_a_cuda_error_is_named_and_is_the_exit_code(sim: Machine) -> None:
    done = sample("vectoradd", "--device", "7", "--json", driver_dir=sim.driver_dir)
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"] == "CUDA_ERROR_INVALID_DEVICE"
    assert "CUDA_ERROR_INVALID_DEVICE" in done.stderr


def test_without_a_driver() -> None:
    done = sample("vectoradd", driver_dir=Path("/nonexistent"))
    assert done.returncode == 4
    assert "libcuda.so.1" in done.stderr


@pytest.mark.parametrize("flags", [("--n", "0"), ("--n", "-3"), ("--n", "many"), ("--n",), ("--what", "1"), ("n", "5")])
def test_bad_flags_are_refused(flags: tuple[str, ...]) -> None:
    done = sample("vectoradd", *flags, driver_dir=None)
    assert done.returncode == 2
    assert "vectoradd" in done.stderr
