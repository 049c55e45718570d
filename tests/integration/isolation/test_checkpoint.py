"""Checkpoints by the driver inside a slice: the memory that they take off the card is free for others, a restore is
charged first, and no process of another slice is touched."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from egpu.adapters.slices.pages import UsageReader
from egpu_sim.machines.machine import Machine
from support.parking_slices import MIB, Slice, filler, used

CARDS = ("A100-40G", 1)

CALLS = """
def steps(pid, *names):
    calls = {
        "lock": d.cuCheckpointProcessLock, "save": d.cuCheckpointProcessCheckpoint,
        "restore": d.cuCheckpointProcessRestore, "unlock": d.cuCheckpointProcessUnlock,
    }
    return [name(calls[one](pid, None)) for one in names]
"""
WORKER = CALLS + "p = upload(numbers(4, 4 * MIB)); say(os.getpid()); wait(); "
CHECK = "say(bool((download(p, numbers(4, 4 * MIB)) == numbers(4, 4 * MIB)).all())); wait()"
FINE = ["SUCCESS", "SUCCESS"]


@pytest.fixture
def make(sim: Machine, tmp_path: Path) -> Iterator[Callable[..., Slice]]:
    made: list[Slice] = []

    def new(*, parkable: bool = False) -> Slice:
        made.append(Slice(sim, tmp_path / f"slice-{len(made)}", limit=32 * MIB, parkable=parkable))
        return made[-1]

    yield new
    assert used(sim) == 0, "nothing is left on the card"


def ask(one: Slice, pid: int, *names: str) -> Any:
    return one.run(f"{CALLS}say(steps({pid}, *{list(names)}))")


def counted(one: Slice) -> int:
    return UsageReader(one.directory / "usage").read().devices[0].memory_bytes


def test_checkpointed_memory_is_not_charged_and_a_restore_is(sim: Machine, make: Callable[..., Slice]) -> None:
    mine = make()
    take = "say(name(d.cuMemAlloc(20 * MIB))); wait()"
    with mine.start(WORKER + CHECK) as program:
        pid = program.hear()
        before, on_card = counted(mine), used(sim)
        assert before >= 16 * MIB
        assert mine.run(take.split(";", maxsplit=1)[0]) == "OUT_OF_MEMORY"
        assert ask(mine, pid, "lock", "save") == FINE
        assert counted(mine) == 0
        assert used(sim) == 0
        processes = UsageReader(mine.directory / "usage").read().processes
        assert [one.parking.parked_bytes for one in processes if one.pid == pid] == [before]
        with mine.start(take) as other:
            assert other.hear() == "SUCCESS", "the limit has the room"
            assert ask(mine, pid, "restore") == ["OUT_OF_MEMORY"], "of our own: the driver was not asked"
        assert ask(mine, pid, "restore", "unlock") == FINE, "the driver would have refused it for good"
        assert (counted(mine), used(sim)) == (before, on_card)
        program.go()
        assert program.hear() is True


def test_a_restore_that_the_driver_refuses_is_not_charged(sim: Machine, make: Callable[..., Slice]) -> None:
    mine = make()
    with mine.start(WORKER + CHECK) as program:
        pid = program.hear()
        before = counted(mine)
        assert ask(mine, pid, "lock", "restore") == ["SUCCESS", "ILLEGAL_STATE"]
        assert counted(mine) == before, "it is on the card"
        assert ask(mine, pid, "save") == ["SUCCESS"]
        with filler(sim, 2 * MIB):
            assert ask(mine, pid, "restore") == ["OUT_OF_MEMORY"]
        assert counted(mine) == 0
        assert ask(mine, pid, "restore") == ["OPERATING_SYSTEM"], "NVIDIA/cuda-checkpoint#44"
        assert counted(mine) == 0


def test_a_killed_checkpoint_leaves_the_account_right(make: Callable[..., Slice]) -> None:
    mine = make()
    with mine.start(WORKER + CHECK) as program, mine.start("ok(d.cuMemAlloc(2 * MIB)); say(1); wait()") as other:
        pid = program.hear()
        other.hear()
        before = counted(mine)
        assert ask(mine, pid, "lock", "save") == FINE
        rest = counted(mine)
        program.kill()
        mine.run("say(ok(d.cuMemGetInfo()))")  # which looks for the dead
        assert counted(mine) == rest < before


def test_a_process_of_another_slice_is_not_touched(make: Callable[..., Slice]) -> None:
    mine, other = make(), make()
    with mine.start(WORKER + CHECK) as program:
        pid = program.hear()
        assert ask(other, pid, "lock", "save", "restore", "unlock") == ["NOT_PERMITTED"] * 4
        code = (
            f"say([name(d.cuCheckpointProcessGetState({pid})), name(d.cuCheckpointProcessGetRestoreThreadId({pid}))])"
        )
        assert other.run(code) == ["NOT_PERMITTED"] * 2
        assert mine.run(code) == ["SUCCESS"] * 2
        program.go()
        assert program.hear() is True


def test_a_process_may_checkpoint_itself(make: Callable[..., Slice]) -> None:
    code = 'say(steps(os.getpid(), "lock", "save", "restore", "unlock")); ' + CHECK
    with make().start(WORKER + code) as program:
        program.hear()
        program.go()
        assert program.hear() == ["SUCCESS"] * 4
        assert program.hear() is True


def test_a_parkable_slice_has_the_other_mechanism(make: Callable[..., Slice]) -> None:
    mine = make(parkable=True)
    with mine.start(WORKER + CHECK) as program:
        assert ask(mine, program.hear(), "lock", "save", "restore", "unlock") == ["NOT_SUPPORTED"] * 4


def test_moves_to_other_cards_and_custom_storage_are_refused(make: Callable[..., Slice]) -> None:
    said = make().run(
        """
        pair = d.CUcheckpointGpuPair()
        one = d.CUuuid(); ctypes.memmove(one.getPtr(), bytes(range(16)), 16)
        pair.oldUuid = one
        args = d.CUcheckpointRestoreArgs(); args.gpuPairs, args.gpuPairsCount = [pair], 1
        save = d.CUcheckpointCheckpointArgs(); ctypes.memset(save.getPtr(), 1, 8)
        mine = os.getpid()
        say([name(d.cuCheckpointProcessRestore(mine, args)), name(d.cuCheckpointProcessCheckpoint(mine, save))])
        """
    )
    assert said == ["NOT_SUPPORTED"] * 2
