"""Cards that fail, time that tests move, turns between processes, and what dead machines leave behind."""
# ruff: noqa: E501  statements of the programs inside read better on one line

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from egpu_base.errors import InvalidInput
from egpu_sim.machines import machine as simulator
from egpu_sim.machines.clock import Clock
from egpu_sim.machines.faults import EccError, FallOffBus, Restore, Xid, inject
from egpu_sim.machines.machine import Machine
from egpu_sim.machines.shared_memory import sweep
from support.simulated_gpu import Program, environment, machine, run


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path, "A100-80G", 2) as made:
        yield made


WATCH = """
n.nvmlInit()
h, other = n.nvmlDeviceGetHandleByIndex(0), n.nvmlDeviceGetHandleByIndex(1)
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(h, n.nvmlDeviceGetSupportedEventTypes(h), events)
def next_event(ms=5000):
    try: e = n.nvmlEventSetWait_v2(events, ms)
    except n.NVMLError as error: return type(error).__name__
    return [e.eventType, e.eventData]
def ecc(kind):
    try: return n.nvmlDeviceGetTotalEccErrors(h, kind, 0)
    except n.NVMLError as error: return type(error).__name__
say(next_event(0))
while True:
    wait()
    say([next_event(), next_event(20), [ecc(0), ecc(1)]])
"""


def test_faults_are_events_and_counted(sim: Machine) -> None:
    with Program(sim, WATCH) as program:
        assert program.hear() == "NVMLError_Timeout"
        inject(sim, 1, Xid(31))  # nobody registered for this card
        inject(sim, 0, Xid(94))
        program.go()
        assert program.hear() == [[8, 94], "NVMLError_Timeout", [0, 0]]
        inject(sim, sim.cards[0], EccError(corrected=True, count=3))
        program.go()
        assert program.hear() == [[1, 0], "NVMLError_Timeout", [3, 0]]
        inject(sim, 0, EccError())
        program.go()
        assert program.hear() == [[2, 0], [8, 48], [3, 1]]
        inject(sim, 0, FallOffBus())
        program.go()
        assert program.hear() == [[8, 79], "NVMLError_Timeout", ["NVMLError_GpuIsLost"] * 2]
    with pytest.raises(InvalidInput):
        inject(sim, 2, Xid(31))
    with pytest.raises(InvalidInput):
        inject(sim, 0, Xid(0))


USE = """
context({ordinal})
f = function(STORE.replace("DURATION", "1"), "store")
a = upload(np.zeros(1, np.uint32))
while True:
    say([name(launch(f, 1, 1, a, (1, ctypes.c_uint32))), name(d.cuCtxSynchronize())])
    wait()
"""


def test_programs_break_with_their_card_and_others_go_on(sim: Machine) -> None:
    count = "ok(d.cuInit(0)); say(ok(d.cuDeviceGetCount()))"
    with Program(sim, USE.format(ordinal=0)) as first, Program(sim, USE.format(ordinal=1)) as second:
        assert [first.hear(), second.hear()] == [["SUCCESS", "SUCCESS"]] * 2
        inject(sim, 0, FallOffBus())
        first.go()
        second.go()
        assert [first.hear(), second.hear()] == [["UNKNOWN", "UNKNOWN"], ["SUCCESS", "SUCCESS"]]
        assert run(sim, count) == 1
        inject(sim, 0, Restore())
        first.go()
        assert first.hear() == ["UNKNOWN", "UNKNOWN"]
        assert run(sim, count) == 2
        inject(sim, 1, EccError())
        second.go()
        assert second.hear() == ["ECC_UNCORRECTABLE", "ECC_UNCORRECTABLE"]
    with Program(sim, USE.format(ordinal=1)) as again:
        assert again.hear() == ["SUCCESS", "SUCCESS"]


TIMED = """
context()
f = function(STORE.replace("DURATION", "5000"), "store")
a = upload(np.zeros(1, np.uint32))
start, end = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
ok(d.cuEventRecord(start, 0)); ok(launch(f, 1, 1, a, (1, ctypes.c_uint32))); ok(d.cuEventRecord(end, 0))
say(name(d.cuEventQuery(end)))
ok(d.cuCtxSynchronize())
say(ok(d.cuEventElapsedTime(start, end)))
wait()
"""


def test_time_stands_still_until_it_is_moved(tmp_path: Path) -> None:
    """A kernel of 5 ms ends after exactly 5 ms, however long that takes; NVML agrees."""
    with (
        machine(tmp_path, "A100-80G", 1, clock="manual") as made,
        Clock(made) as clock,
        Program(made, TIMED) as program,
    ):
        begin = clock.now()
        assert program.hear() == "NOT_READY"
        clock.wait_for_sleepers(1)
        for _ in range(4):
            clock.advance(1_000_000)
        assert clock.sleepers() == 1
        read = "n.nvmlInit(); say(n.nvmlDeviceGetUtilizationRates(n.nvmlDeviceGetHandleByIndex(0)).gpu)"
        clock.advance(1_000_000)
        assert program.hear() == 5.0
        assert clock.now() == begin + 5_000_000
        clock.advance(100_000_000)
        assert run(made, read) == 3  # 5 ms of 168, the whole buckets in a window of 170
        clock.advance(1_000_000_000)
        assert run(made, read) == 0


def test_only_a_manual_clock_is_moved(sim: Machine) -> None:
    with pytest.raises(InvalidInput, match="passes by itself"):
        Clock(sim)
    assert run(sim, 'context(); c = ctypes.CDLL("libcuda.so.1"); say(c.egpuSimClockAdvance(ctypes.c_uint64(5)))') == -1
    with pytest.raises(InvalidInput):
        simulator.create_machine(sim.directory / "x", "T4", 1, clock="sundial")  # pyright: ignore[reportArgumentType]


LEAVE = """
import os, sys
from pathlib import Path
from egpu_sim.machines import machine as simulator
made = simulator.create_machine(Path(sys.argv[1]), "T4", 1, "left", shared_memory=Path(sys.argv[2]), persistent=sys.argv[3] == "1")
print(made.state, flush=True)
sys.stdin.readline()
"""


def leave(directory: Path, memory: Path, *, persistent: bool = False) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", LEAVE, str(directory), str(memory), "1" if persistent else "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    return process, Path(process.stdout.readline().strip())


def test_what_dead_machines_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    """Not a machine whose maker lives, nor one that somebody uses, nor one that is meant to stay."""
    memory = tmp_path / "memory"
    memory.mkdir()
    dead, dead_state = leave(tmp_path / "dead", memory)
    alive, alive_state = leave(tmp_path / "alive", memory)
    used, used_state = leave(tmp_path / "used", memory)
    stays, stays_state = leave(tmp_path / "stays", memory, persistent=True)
    foreign = memory / "egpu-sim-something-else"
    foreign.write_bytes(b"not a machine")
    program = Program(
        tmp_path / "used" / "driver", "context(); say(1); wait()", environment(tmp_path / "used" / "driver")
    )
    assert program.hear() == 1
    for process in (dead, used, stays):
        process.kill()
        process.wait(30)
    made = simulator.create_machine(tmp_path / "next", "T4", 1, shared_memory=memory)
    assert not dead_state.exists()
    assert all(path.exists() for path in (alive_state, used_state, stays_state, foreign, made.state))
    program.kill()
    assert sweep(memory) == (used_state,)
    alive.kill()
    alive.wait(30)
    simulator.keep(simulator.open_machine(tmp_path / "alive"))  # as a daemon does that is started again
    assert sweep(memory) == ()
    assert simulator.open_machine(tmp_path / "alive").state == alive_state
