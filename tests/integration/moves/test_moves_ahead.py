"""What a target has before the session stops: here one that cannot stop yet, because it uses a variable."""

import contextlib
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

from egpu_sim.machines.machine import Machine
from support.moving import Movable, Refused, movable
from support.simulated_gpu import STORE_SEVEN, Program, machine
from support.waiting import wait_until

CARDS = ("T4", 1)
MIB: Final = 1 << 20
BLOCK: Final = 16 * MIB
"""Of memory, with a mapping of its own."""
SEVEN: Final = STORE_SEVEN.replace("sm_80", "sm_70")

PROGRAM: Final = f"""
    context()
    LARGE = {SEVEN!r} + "// " + "x" * 50_000 + "\\n"  # an image that is not in the frame that loads it
    libcuda = ctypes.CDLL("libcuda.so.1")
    library = ok(d.cuLibraryLoadData(
        b".version 7.0\\n.target sm_70\\n.address_size 64\\n.global .u32 cell;\\n\\0", [], [], 0, [], [], 0))
    def filled(size, value):
        at = ok(d.cuMemAlloc(size))
        ok(d.cuMemsetD8(at, value, size))
        return at
    def holds(at, size, value): return bool((download(at, np.zeros(size, np.uint8)) == value).all())
    def seven(f):
        at = filled(4, 0)
        ok(launch(f, 1, 1, at))
        return int(download(at, np.zeros(1, np.uint32))[0])
    stays, goes, ends = (filled({BLOCK}, value) for value in (1, 2, 4))
    early, gone = function(LARGE, "k"), ok(d.cuModuleLoadData((LARGE + "// gone").encode() + b"\\0"))
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    begin = libcuda.egpuVariableBegin(ctypes.byref(address), ctypes.byref(size), ctypes.c_void_p(int(library)), b"cell")
    say(begin); wait()
    ok(d.cuMemFree(goes)); ok(d.cuMemFree(ends))
    comes = filled({BLOCK} // 2, 3)
    ok(d.cuModuleUnload(gone))
    late = function(LARGE + "// late", "k")
    say(int(comes) == int(goes))
    libcuda.egpuVariableEnd(ctypes.c_void_p(int(library)))
    wait()
    say([holds(stays, {BLOCK}, 1), holds(comes, {BLOCK} // 2, 3), seven(early), seven(late)])
"""

FREE: Final = """
    context()
    while True:
        say(ok(d.cuMemGetInfo())[0])
        wait()
"""


class Move:
    """A move in a thread of its own."""

    def __init__(self, moved: Movable, to: Machine) -> None:
        self.failed: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(moved, to))
        self._thread.start()

    def _run(self, moved: Movable, to: Machine) -> None:
        try:
            moved.move(to)
        except Exception as error:
            self.failed = error

    def wait(self) -> None:
        self._thread.join()
        if self.failed is not None:
            raise self.failed


@contextlib.contextmanager
def free_bytes(on: Machine) -> Generator[Any]:
    """Yield a function that returns the free bytes of the first card."""
    with Program(on, FREE) as program:
        program.hear()

        def ask() -> int:
            program.go()
            return int(program.hear())

        yield ask


def test_memory_and_images_are_there_before_the_session_stops_and_follow_its_changes(
    sim: Machine, tmp_path: Path
) -> None:
    with (
        machine(tmp_path / "other", "T4", 1, context_mib=0, driver_mib=0) as other,
        movable(sim, tmp_path / "lease") as moved,
        Program(moved.client, PROGRAM) as program,
        free_bytes(other) as free,
    ):
        assert program.hear() == 0
        before = free()
        move = Move(moved, other)
        wait_until(lambda: before - free() >= 3 * BLOCK, "the target has the memory")
        program.go()
        assert program.hear() is True  # the new memory is where the old one was
        move.wait()
        program.go()
        assert program.hear() == [True, True, 7, 7]
        assert before - free() < 2 * BLOCK


@pytest.mark.parametrize("profile", ["T4", "A100-40G"], ids=["too little memory", "another model"])
def test_a_target_that_cannot_have_the_session_says_so_before_it_stops(
    sim: Machine, tmp_path: Path, profile: str
) -> None:
    """A session that cannot be stopped would else say that."""
    fill = f"context(); ok(d.cuMemAlloc(ok(d.cuMemGetInfo())[0] - {BLOCK})); say(0); wait()"
    why = "too little memory" if profile == "T4" else "another model"
    with (
        machine(tmp_path / "other", profile, 1, context_mib=0, driver_mib=0) as other,
        movable(sim, tmp_path / "lease") as moved,
        Program(moved.client, PROGRAM) as program,
        Program(other, fill) as filler,
    ):
        assert (program.hear(), filler.hear()) == (0, 0)
        with pytest.raises(Refused, match=why):
            moved.move(other)
        program.go()
        assert program.hear() is True
        program.go()
        assert program.hear() == [True, True, 7, 7]
