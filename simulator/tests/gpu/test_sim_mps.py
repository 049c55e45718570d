"""MPS on simulated cards: a server holds its clients to their part, and a fault of one is everybody's."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egpu_sim.machines.machine import Machine
from support.mps import asked, control, daemon, pid
from support.simulated_gpu import Program, machine, run
from support.waiting import wait_until

T4_PROCESSORS = 40
THIRD = ("set_default_active_thread_percentage 30", "set_default_device_pinned_mem_limit 0 256M")
SEES = """
context()
device = ok(d.cuDeviceGet(0))
processors = ok(d.cuDeviceGetAttribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device))
held = [name(d.cuMemAlloc(64 << 20)) for _ in range(6)].count("SUCCESS")
say([processors, held])
"""
GOES_ON = """
context()
say("ready")
while True:
    wait()
    say(name(d.cuCtxSynchronize()))
"""
FAULT = """
context()
f = function(STORE.replace("DURATION", "10"), "store")
ok(launch(f, 1, 1, 0x10, (1, ctypes.c_uint32)))
say(name(d.cuCtxSynchronize())); wait()
"""
# Ten kernels of 1 ms on the whole card, by the simulated time between two events.
KERNELS = """
context()
f = function(STORE.replace("DURATION", "1000"), "store")
out = ok(d.cuMemAlloc(4))
begin, end = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
ok(d.cuEventRecord(begin, 0))
for _ in range(10): ok(launch(f, 1, 1, out, (1, ctypes.c_uint32)))
ok(d.cuEventRecord(end, 0)); ok(d.cuEventSynchronize(end))
say(ok(d.cuEventElapsedTime(begin, end)))
"""


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("mps"), "T4", 1, context_mib=0, driver_mib=0) as made:
        yield made


def client(pipes: Path, **own: str) -> dict[str, str]:
    """The environment of a program that finds this server."""
    return {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), **own}


def heard_next(program: Program) -> Any:
    program.go()
    return program.hear()


def test_a_client_has_its_part_of_the_processors_and_of_the_memory(sim: Machine, tmp_path: Path) -> None:
    with daemon(tmp_path, *THIRD) as pipes:
        assert run(sim, SEES, client(pipes)) == [12, 4]
        assert run(sim, SEES) == [T4_PROCESSORS, 6], "who is no client of it is not held by it"


def test_its_own_settings_make_the_part_of_a_client_smaller_and_never_larger(sim: Machine, tmp_path: Path) -> None:
    def sees(percentage: str, limit: str) -> Any:
        own = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percentage, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limit}
        return run(sim, SEES, client(pipes, **own))

    with daemon(tmp_path, *THIRD) as pipes:
        assert sees("10", "1=1G,0=128MB") == [4, 2]
        assert sees("100", "0=4G") == [12, 4]
        assert sees("many", "0=none") == [12, 4]


def test_kernels_take_longer_on_a_part_of_the_card_and_leave_the_rest_to_others(sim: Machine, tmp_path: Path) -> None:
    with daemon(tmp_path, "set_default_active_thread_percentage 25") as pipes:
        assert run(sim, KERNELS, client(pipes)) == pytest.approx(40, rel=0.02)
    assert run(sim, KERNELS) == pytest.approx(10, rel=0.02)


def test_a_fault_ends_all_clients_and_nobody_comes_in_before_they_are_gone(sim: Machine, tmp_path: Path) -> None:
    with daemon(tmp_path) as pipes, Program(sim, GOES_ON) as stranger:
        assert stranger.hear() == "ready"
        with Program(sim, GOES_ON, client(pipes)) as other:
            assert other.hear() == "ready"
            assert heard_next(other) == "SUCCESS"
            with Program(sim, FAULT, client(pipes)) as faulty:
                assert faulty.hear() == "ILLEGAL_ADDRESS"
                wait_until(lambda: heard_next(other) == "ILLEGAL_ADDRESS")
                assert asked(pipes, f"get_server_status {pid(pipes)}") == ["FAULT"]
                assert run(sim, "say(name(d.cuInit(0)))", client(pipes)) == "MPS_SERVER_NOT_READY"
                assert heard_next(stranger) == "SUCCESS"
        wait_until(lambda: asked(pipes, f"get_server_status {pid(pipes)}") == ["ACTIVE"])
        assert run(sim, SEES, client(pipes)) == [T4_PROCESSORS, 6]


def test_without_a_server(sim: Machine, tmp_path: Path) -> None:
    assert run(sim, SEES, client(tmp_path / "nobody")) == [T4_PROCESSORS, 6], "a program goes on without MPS"
    assert "Cannot find MPS control daemon process" in control(tmp_path / "nobody", "get_server_list").stdout
    with daemon(tmp_path) as pipes, Program(sim, GOES_ON, client(pipes)) as program:
        assert program.hear() == "ready"
        os.kill(pid(pipes), signal.SIGKILL)
        wait_until(lambda: heard_next(program) == "MPS_RPC_FAILURE")
        assert run(sim, "say(name(d.cuInit(0)))", client(pipes)) == "MPS_CONNECTION_FAILED"
        with daemon(tmp_path) as again:
            assert run(sim, SEES, client(again)) == [T4_PROCESSORS, 6], "another daemon takes the directory over"


def test_in_exclusive_mode_the_clients_of_the_server_are_let_in_together_and_nobody_else(
    sim: Machine, tmp_path: Path
) -> None:
    mode = "n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); n.nvmlDeviceSetComputeMode(h, {})\nsay({})"
    seen = "n.nvmlDeviceGetComputeMode(h)"
    retains = "ok(d.cuInit(0)); say(name(d.cuDevicePrimaryCtxRetain(ok(d.cuDeviceGet(0)))))"
    assert run(sim, mode.format("n.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS", seen)) == 3
    try:
        with daemon(tmp_path) as pipes, Program(sim, GOES_ON, client(pipes)) as first:
            assert first.hear() == "ready"
            assert run(sim, retains, client(pipes)) == "SUCCESS"
            assert run(sim, retains) == "DEVICE_UNAVAILABLE"
            first.kill()
            assert run(sim, retains) == "SUCCESS"
    finally:
        assert run(sim, mode.format("n.NVML_COMPUTEMODE_DEFAULT", seen)) == 0


def test_the_words_of_the_control_program(sim: Machine, tmp_path: Path) -> None:
    with daemon(tmp_path) as pipes:
        assert asked(pipes, "get_server_list", *THIRD, "get_default_device_pinned_mem_limit 0") == ["30.0", "256M"]
        assert asked(pipes, "get_default_device_pinned_mem_limit 1") == ["no limit"]
        server = pid(pipes)
        asked(pipes, "start_server -uid 0", "set_default_active_thread_percentage 50")
        assert asked(pipes, "get_server_list", "get_default_active_thread_percentage") == [str(server), "50.0"]
        assert run(sim, SEES, client(pipes)) == [12, 4], "a default counts from the next server on"
        asked(pipes, f"set_active_thread_percentage {server} 50", f"set_device_pinned_mem_limit {server} 0 128M")
        with Program(sim, SEES + "wait()", client(pipes)) as program:
            assert program.hear() == [20, 2]
            assert asked(pipes, f"get_client_list {server}") == [str(program.process.pid)]
        for wrong in ("set_default_active_thread_percentage 0", "get_client_list 1", "start_server", "no_such_word"):
            assert control(pipes, wrong).returncode == 1
        assert control(pipes, option="-d").returncode == 1, "one daemon of a directory"
