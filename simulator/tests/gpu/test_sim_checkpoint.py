"""cuCheckpointProcess… on simulated cards: as strict, and as late, as NVIDIA's documentation and reports say."""

import textwrap
from pathlib import Path
from typing import Any, Final

from egpu_sim.machines.machine import Machine
from support.simulated_gpu import Program, machine, run

CARDS: Final = ("A100-40G", 1)

# The calls about a process of the machine, each with the name of its answer. No cuInit is needed.
CALLS = """
MIB = 1 << 20
def state(pid):
    said = d.cuCheckpointProcessGetState(pid)
    return name(said) if int(said[0]) else said[1].name.removeprefix("CU_PROCESS_STATE_")
def lock(pid, ms=0):
    args = d.CUcheckpointLockArgs(); args.timeoutMs = ms
    return name(d.cuCheckpointProcessLock(pid, args))
def save(pid): return name(d.cuCheckpointProcessCheckpoint(pid, None))
def unlock(pid): return name(d.cuCheckpointProcessUnlock(pid, None))
def uuid(text):
    one = d.CUuuid()
    ctypes.memmove(one.getPtr(), bytes.fromhex(text.removeprefix("GPU-").replace("-", "")), 16)
    return one
def restore(pid, pairs=()):
    args = d.CUcheckpointRestoreArgs()
    made = []
    for old, new in pairs:
        pair = d.CUcheckpointGpuPair(); pair.oldUuid, pair.newUuid = uuid(old), uuid(new); made.append(pair)
    if made: args.gpuPairs, args.gpuPairsCount = made, len(made)
    return name(d.cuCheckpointProcessRestore(pid, args))
def seen():
    n.nvmlInit()
    cards = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
    pids = [[one.pid for one in n.nvmlDeviceGetComputeRunningProcesses(card)] for card in cards]
    return [[mine, n.nvmlDeviceGetMemoryInfo(card).used // MIB] for mine, card in zip(pids, cards)]
"""

WORKER = """
import threading
context()
N = 1 << 20
ADD = function(VECTOR_ADD, "add")
a, b = [np.random.default_rng(k).random(N, dtype=np.float32) for k in (1, 2)]
A, B, C = upload(a), upload(b), ok(d.cuMemAlloc(a.nbytes))
pool = ok(d.cuMemAllocAsync(8 << 20, 0)); ok(d.cuMemsetD32(pool, 9, 2 << 20))
pinned = ok(d.cuMemHostAlloc(4096, 0))
def right():
    ok(launch(ADD, N // 256, 256, A, B, C, (N, ctypes.c_uint32)))
    fine = [download(p, want) == want for p, want in ((A, a), (B, b), (C, a + b))]
    return all(bool(one.all()) for one in fine) and bool((download(pool, np.zeros(2 << 20, np.uint32)) == 9).all())
"""


def ask(on: Machine, code: str, **values: object) -> Any:
    """Run calls in a process of its own, which uses no card."""
    lines = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    return run(on, CALLS + lines + textwrap.dedent(code))


def worker(on: Machine, code: str) -> Program:
    return Program(on, CALLS + WORKER + "say([os.getpid(), right()])\n" + textwrap.dedent(code))


def test_a_checkpointed_process_leaves_its_card_and_returns_with_every_byte(sim: Machine) -> None:
    with worker(sim, "wait(); say(right()); wait(); say(right())") as program:
        pid, fine = program.hear()
        assert fine
        before = ask(sim, "say(seen())")
        for _ in range(2):
            said = ask(sim, "say([lock(P), state(P), save(P), state(P), seen()])", P=pid)
            assert said[:4] == ["SUCCESS", "LOCKED", "SUCCESS", "CHECKPOINTED"]
            assert said[4] == [[[], 0]], "NVML lists neither the process nor memory"
            said = ask(sim, "say([restore(P), state(P), seen(), unlock(P), state(P)])", P=pid)
            assert said == ["SUCCESS", "LOCKED", before, "SUCCESS", "RUNNING"]
            program.go()
            assert program.hear()


def test_calls_of_a_locked_process_wait(sim: Machine) -> None:
    code = """
    threading.Thread(target=lambda: (wait(), say("asks"), context(), say(right()))).start()
    """
    with worker(sim, code) as program:
        pid, _ = program.hear()
        assert ask(sim, "say([lock(P), save(P)])", P=pid) == ["SUCCESS"] * 2
        program.go()
        assert program.hear() == "asks"
        assert ask(sim, "time.sleep(0.2); say([state(P), seen()])", P=pid) == ["CHECKPOINTED", [[[], 0]]]
        assert ask(sim, "say([restore(P), unlock(P)])", P=pid) == ["SUCCESS"] * 2
        assert program.hear() is True


def test_each_step_has_one_state(sim: Machine) -> None:
    steps = "say([save(P), restore(P), unlock(P), state(P)])"
    illegal = ["ILLEGAL_STATE"] * 3
    with worker(sim, "wait()") as program:
        pid, _ = program.hear()
        assert ask(sim, steps, P=pid) == [*illegal, "RUNNING"]
        assert ask(sim, "say([lock(P), lock(P), restore(P), state(P)])", P=pid) == ["SUCCESS", *illegal[:2], "LOCKED"]
        said = ask(sim, "say([save(P), lock(P), save(P), unlock(P), state(P)])", P=pid)
        assert said == ["SUCCESS", *illegal, "CHECKPOINTED"]


def test_a_lock_waits_for_work_that_began_and_gives_up_in_time(sim: Machine) -> None:
    code = """
    f = function(STORE.replace("DURATION", "3000000"), "store")
    ok(launch(f, 1, 1, A, (1, ctypes.c_uint32))); say("runs"); wait()
    ok(d.cuCtxSynchronize()); say("done"); wait()
    """
    with worker(sim, code) as program:
        pid, _ = program.hear()
        assert program.hear() == "runs"
        assert ask(sim, "say([lock(P, 50), state(P)])", P=pid) == ["NOT_READY", "RUNNING"]
        program.go()
        assert program.hear() == "done", "the process runs on"
        assert ask(sim, "say([lock(P, 60000), state(P)])", P=pid) == ["SUCCESS", "LOCKED"]


def test_arguments_are_checked(sim: Machine) -> None:
    with worker(sim, "wait()") as program:
        pid, _ = program.hear()
        said = ask(
            sim,
            """
            args = d.CUcheckpointLockArgs()
            ctypes.memset(args.getPtr() + 4, 1, 1)
            bad = name(d.cuCheckpointProcessLock(P, args))
            thread = ok(d.cuCheckpointProcessGetRestoreThreadId(P))
            say([bad, os.path.isdir(f"/proc/{P}/task/{thread}"), thread != P, state(os.getpid()), lock(1 << 22)])
            """,
            P=pid,
        )
        assert said == ["INVALID_VALUE", True, True, "INVALID_VALUE", "INVALID_VALUE"]


def test_a_process_may_checkpoint_itself(sim: Machine) -> None:
    with worker(sim, "P = os.getpid(); say([lock(P), save(P), seen(), restore(P), unlock(P), right()])") as program:
        program.hear()
        assert program.hear() == ["SUCCESS", "SUCCESS", [[[], 0]], "SUCCESS", "SUCCESS", True]


def test_a_restore_without_room_is_stuck_for_good(sim: Machine) -> None:
    """NVIDIA/cuda-checkpoint#44."""
    fill = "context(); ok(d.cuMemAlloc(ok(d.cuMemGetInfo())[0] - (2 << 20))); say('full'); wait()"
    with worker(sim, "wait()") as program:
        pid, _ = program.hear()
        assert ask(sim, "say([lock(P), save(P)])", P=pid) == ["SUCCESS"] * 2
        with Program(sim, fill) as other:
            assert other.hear() == "full"
            assert ask(sim, "say([restore(P), state(P)])", P=pid) == ["OUT_OF_MEMORY", "CHECKPOINTED"]
        said = ask(sim, "say([restore(P), unlock(P), state(P), seen()])", P=pid)
        assert said == ["OPERATING_SYSTEM", "ILLEGAL_STATE", "CHECKPOINTED", [[[], 0]]]


def test_managed_and_shared_memory_fail_late(sim: Machine) -> None:
    for allocate in ("ok(d.cuMemAllocManaged(1 << 21, 1))", "ok(d.cuIpcGetMemHandle(A))"):
        with worker(sim, f"{allocate}; say(1); wait()") as program:
            pid, _ = program.hear()
            program.hear()
            said = ask(sim, "say([lock(P), save(P), state(P), unlock(P)])", P=pid)
            assert said == ["SUCCESS", "NOT_SUPPORTED", "FAILED", "ILLEGAL_STATE"]


def test_pairs_move_a_process_to_other_cards_of_the_same_chip(tmp_path: Path) -> None:
    with machine(tmp_path, ["T4", "T4", "T4", "A100-40G"], None) as made:
        one, two, three, unlike = [card.uuid for card in made.cards]
        with Program(made, CALLS + WORKER + "say(os.getpid()); wait(); say(right()); wait()") as program:
            pid = program.hear()
            before = ask(made, "say(seen())")
            assert ask(made, "say([lock(P), save(P)])", P=pid) == ["SUCCESS"] * 2

            def restored(pairs: list[tuple[str, str]]) -> str:
                return ask(made, "say(restore(P, PAIRS))", P=pid, PAIRS=pairs)

            moves = [(one, two), (two, three), (three, one)]
            assert restored(moves) == "INVALID_VALUE", "a card that the process saw is missing"
            assert restored([(one, unlike), (two, two), (three, three), (unlike, one)]) == "INVALID_VALUE"
            assert restored([(one, two), (two, two), (three, one), (unlike, unlike)]) == "INVALID_VALUE"
            assert restored([*moves, (unlike, unlike)]) == "SUCCESS"
            assert ask(made, "say(unlock(P))", P=pid) == "SUCCESS"
            assert ask(made, "say(seen())") == [[[], 0], before[0], *before[2:]]
            program.go()
            assert program.hear() is True


def test_a_killed_process_leaves_nothing_and_a_killed_caller_blocks_nobody(sim: Machine) -> None:
    forever = """
    f = function(STORE.replace("DURATION", "2000000"), "store")
    ok(launch(f, 1, 1, A, (1, ctypes.c_uint32))); say("runs"); wait()
    """
    with worker(sim, forever) as program:
        pid, _ = program.hear()
        program.hear()
        with Program(sim, CALLS + f"say(1); say(lock({pid}))") as caller:
            caller.hear()
        said = ask(sim, "say(lock(P, 60000))", P=pid)
        assert said in ("SUCCESS", "ILLEGAL_STATE"), "ILLEGAL_STATE: the first one did it"
        assert ask(sim, "say([save(P), state(P)])", P=pid) == ["SUCCESS", "CHECKPOINTED"]
        program.kill()
        assert ask(sim, "say([state(P), seen()])", P=pid) == ["INVALID_VALUE", [[[], 0]]]
