"""One simulated machine, many processes: what they share, what they must not, and what a killed one leaves behind."""
# ruff: noqa: E501  statements of the programs inside read better on one line

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from egpu_base.errors import InvalidInput, NotSupported, Unavailable
from egpu_sim.machines import machine as simulator
from egpu_sim.machines.machine import Machine, make_driver_dir, open_machine
from egpu_sim.machines.shared_memory import list_machines
from support import sanitizers
from support.simulated_gpu import Program, machine, run
from support.waiting import wait_until

HOLD = """
context()
pointer = ok(d.cuMemAlloc(int(os.environ["BYTES"])))
ok(d.cuMemsetD8(pointer, 7, 1 << 20))
say(os.getpid())
wait()
ok(d.cuMemFree(pointer))
say("freed")
wait()
"""

FREE = "context(); say(list(ok(d.cuMemGetInfo())))"

NVML = """
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
say([n.nvmlDeviceGetMemoryInfo(h).used, sorted([p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(h))])
"""


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path, "T4", 3) as made:
        yield made


def holder(on: Machine, gib: int = 4) -> Program:
    return Program(on, HOLD, {"BYTES": str(gib << 30)})


def test_memory_is_shared_by_all_processes(sim: Machine) -> None:
    free, total = run(sim, FREE)
    with holder(sim, 10) as first:
        first.hear()
        assert run(sim, FREE) == [free - (10 << 30), total]
        assert run(sim, "context(); say(name(d.cuMemAlloc(6 << 30)))") == "OUT_OF_MEMORY"
        first.go()
        assert first.hear() == "freed"
        assert run(sim, FREE) == [free, total]


def test_nvml_lists_processes_with_a_context_only(sim: Machine) -> None:
    with Program(sim, "ok(d.cuInit(0)); say(1); wait(); context(); say(os.getpid()); wait()") as program:
        program.hear()
        assert run(sim, NVML) == [0, []]
        program.go()
        pid = program.hear()
        assert run(sim, NVML) == [0, [[pid, 0]]]
        with holder(sim) as second:
            other = second.hear()
            assert run(sim, NVML) == [4 << 30, sorted([[pid, 0], [other, 4 << 30]])]
    assert run(sim, NVML) == [0, []]


def test_what_a_killed_process_held_comes_back(sim: Machine) -> None:
    free, total = run(sim, FREE)
    programs = [holder(sim, 3) for _ in range(4)]
    for program in programs:
        program.hear()
    assert run(sim, FREE) == [free - (12 << 30), total]
    before = sim.state.stat().st_blocks
    for program in programs:
        program.process.send_signal(signal.SIGKILL)
    for program in programs:
        program.process.wait(30)
    assert run(sim, FREE) == [free, total]
    assert sim.state.stat().st_blocks < before, "the contents were not punched out"


def test_a_stopped_process_keeps_what_it_holds(sim: Machine) -> None:
    free, total = run(sim, FREE)
    with holder(sim, 3) as program:
        program.hear()
        program.process.send_signal(signal.SIGSTOP)
        assert run(sim, FREE) == [free - (3 << 30), total]
        program.process.send_signal(signal.SIGCONT)


def test_a_child_does_not_keep_its_dead_parent_alive(sim: Machine) -> None:
    free, total = run(sim, FREE)
    code = """
        context()
        ok(d.cuMemAlloc(4 << 30))
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        say(child)
        wait()
    """
    with Program(sim, code) as program:
        child = program.hear()
        program.kill()
        try:
            assert run(sim, FREE) == [free, total]
        finally:
            os.kill(child, signal.SIGKILL)


def test_kills_at_random_moments_leave_nothing_behind(sim: Machine) -> None:
    free, total = run(sim, FREE)
    churn = """
        context()
        say(0)
        import random
        held = []
        while True:
            if held and random.random() < 0.5: ok(d.cuMemFree(held.pop(random.randrange(len(held)))))
            else:
                result = d.cuMemAlloc(random.choice([1, 4096, 3 << 20, 100 << 20, 1 << 30]))
                if int(result[0]) == 0: held.append(result[1])
    """
    chance = random.Random(5)
    programs = [Program(sim, churn) for _ in range(3)]
    for program in programs:
        program.hear()
    for _ in range(6):
        time.sleep(chance.uniform(0, 0.05))  # the moment of death is what varies
        victim = programs.pop(chance.randrange(len(programs)))
        victim.kill()
        fresh = Program(sim, churn)
        fresh.hear()
        programs.append(fresh)
    for program in programs:
        program.kill()
    assert run(sim, FREE) == [free, total]


def test_freed_contents_are_not_seen_by_the_next_process(sim: Machine) -> None:
    run(sim, "context(); p = ok(d.cuMemAlloc(64 << 20)); ok(d.cuMemsetD8(p, 0xAB, 64 << 20)); say(0)")
    assert run(
        sim, "context(); p = ok(d.cuMemAlloc(64 << 20)); say(int(download(p, np.zeros(64 << 20, np.uint8)).max()))"
    ) == 0  # fmt: skip


def test_two_processes_share_the_time_of_a_card(sim: Machine) -> None:
    """Alone the work takes 0.4 s; two at once need the card for 0.8 s together, however late either of them is woken."""
    work = """
        context()
        f = function(STORE.replace("DURATION", "4000"), "store")
        a = upload(np.zeros(1, np.uint32))
        ok(launch(f, 1, 1, a, (1, ctypes.c_uint32))); ok(d.cuCtxSynchronize())
        say("ready"); wait()
        start, end = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
        began = time.monotonic()
        ok(d.cuEventRecord(start, 0))
        for _ in range(100): ok(launch(f, 1, 1, a, (1, ctypes.c_uint32)))
        ok(d.cuEventRecord(end, 0)); ok(d.cuEventSynchronize(end))
        say([ok(d.cuEventElapsedTime(start, end)), began, time.monotonic()])
    """
    with Program(sim, work) as alone:
        alone.hear()
        alone.go()
        assert alone.hear()[0] >= 399
    with Program(sim, work) as first, Program(sim, work) as second:
        for one in (first, second):
            one.hear()
        for one in (first, second):
            one.go()
        spans = [first.hear(), second.hear()]
    assert max(end for _, _, end in spans) - min(began for _, began, _ in spans) > 0.79


def test_a_killed_process_does_not_hold_the_card(sim: Machine) -> None:
    code = """
        context()
        f = function(STORE.replace("DURATION", "600000000"), "store")
        a = upload(np.zeros(1, np.uint32))
        ok(launch(f, 1, 1, a, (1, ctypes.c_uint32)))
        say(0); wait()
    """
    with Program(sim, code) as program:
        program.hear()
        wait_until(lambda: run(sim, BUSY) > 80)
    assert run(
        sim,
        """
        context()
        f = function(STORE.replace("DURATION", "10"), "store")
        a = upload(np.zeros(1, np.uint32))
        began = time.monotonic()
        ok(launch(f, 1, 1, a, (1, ctypes.c_uint32))); ok(d.cuCtxSynchronize())
        say(time.monotonic() - began)
        """,
    ) < 300  # fmt: skip


BUSY = "n.nvmlInit(); say(n.nvmlDeviceGetUtilizationRates(n.nvmlDeviceGetHandleByIndex(0)).gpu)"


def test_device_files_decide_what_is_visible(sim: Machine, tmp_path: Path) -> None:
    granted = tmp_path / "granted"
    granted.mkdir()
    (granted / "nvidia1").symlink_to(sim.cards[1].device)
    (granted / "nvidia0").write_text(f"EGPUSIM1 {sim.cards[2].uuid}")  # another card's file under this minor
    (granted / "nvidia2").symlink_to(tmp_path / "nowhere")
    driver = make_driver_dir(sim, tmp_path / "container", granted)
    assert run(
        driver,
        """
        ok(d.cuInit(0)); n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(0)
        say([ok(d.cuDeviceGetCount()), bytes(ok(d.cuDeviceGetUuid(0)).bytes).hex(), n.nvmlDeviceGetCount(), n.nvmlDeviceGetUUID(h),
             n.nvmlDeviceGetMinorNumber(h)])
        """,
    ) == [1, sim.cards[1].uuid[4:].replace("-", ""), 1, sim.cards[1].uuid, 1]
    (granted / "nvidia1").unlink()
    assert run(driver, "say(name(d.cuInit(0)))") == "NO_DEVICE"


def test_cuda_visible_devices(sim: Machine) -> None:
    uuids = [card.uuid for card in sim.cards]
    code = """
        result = name(d.cuInit(0))
        n.nvmlInit()
        count = ok(d.cuDeviceGetCount()) if result == "SUCCESS" else 0
        say([[bytes(ok(d.cuDeviceGetUuid(i)).bytes).hex() for i in range(count)] if count else result, n.nvmlDeviceGetCount()])
    """
    for value, wanted in {
        "2,0": [2, 0],
        uuids[1]: [1],
        uuids[1][:12]: [1],
        f"{uuids[2]},{uuids[0]}": [2, 0],
        "1,7,0": [1],
        "0,-1,1": [0],
    }.items():
        seen, all_of_them = run(sim, code, {"CUDA_VISIBLE_DEVICES": value})
        assert seen == [uuids[i][4:].replace("-", "") for i in wanted], value
        assert all_of_them == 3
    for value in ("", "-1", "NoDevFiles", "GPU-", "1,1"):
        assert run(sim, code, {"CUDA_VISIBLE_DEVICES": value})[0] == "NO_DEVICE", value


@pytest.mark.skipif(bool(sanitizers.KIND), reason="a sanitizer's runtime comes through the environment")
def test_a_cleared_environment_changes_nothing(sim: Machine) -> None:
    done = run(
        sim,
        f"""
        import subprocess
        out = subprocess.run(["env", "-i", sys.executable, "-c",
            "import ctypes; c=ctypes.CDLL({str(sim.driver_dir / "libcuda.so.1")!r}); print(c.cuInit(0))"], capture_output=True, text=True)
        say(out.stdout.strip())
        """,
    )
    assert done == "0"


def test_making_machines(tmp_path: Path) -> None:
    with machine(tmp_path, ["A100-80G", "t4"], None, "worker-1") as made:
        assert [card.model for card in made.cards] == ["NVIDIA A100-SXM4-80GB", "Tesla T4"]
        assert made.cards[1].uuid == simulator.card_uuid("worker-1", 1)
        assert open_machine(made.directory) == made
        assert [found.node_name for found in list_machines() if found.path == made.state] == ["worker-1"]
        with pytest.raises(InvalidInput, match="already has a machine"):
            simulator.create_machine(made.directory, "T4", 1)
        made.state.unlink()
        with pytest.raises(Unavailable, match="state of the machine"):
            open_machine(made.directory)
    assert not made.directory.exists()
    with machine(tmp_path, "T4", 0) as empty:
        assert run(empty, "say(name(d.cuInit(0)))") == "NO_DEVICE"


def test_what_cannot_be_made(tmp_path: Path) -> None:
    for arguments, message in {
        ("A1000", 1): "A1000.*known are A100-40G, A100-80G",
        ("T4", 17): "17 is not between 0 and 16",
        ("T4", -1): "-1 is not between",
    }.items():
        with pytest.raises(InvalidInput, match=message):
            simulator.create_machine(tmp_path / "m", *arguments)
    with pytest.raises(NotSupported, match="not a directory"):
        simulator.create_machine(tmp_path / "m", "T4", 1, shared_memory=tmp_path / "missing")
    assert not (tmp_path / "m").exists()


def test_full_shared_memory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.statvfs("/dev/shm")
    fields = {name: getattr(full, name) for name in dir(full) if name.startswith("f_")} | {"f_bavail": 10}
    monkeypatch.setattr(os, "statvfs", lambda _: type("Full", (), fields))
    with pytest.raises(Unavailable, match="MiB left"):
        simulator.create_machine(tmp_path / "m", "T4", 1)


def test_destroying_a_machine_leaves_nothing(tmp_path: Path) -> None:
    with machine(tmp_path, "T4", 1) as made:
        run(made, "context(); say(0)")
    assert not made.state.exists()
    assert not made.directory.exists()
