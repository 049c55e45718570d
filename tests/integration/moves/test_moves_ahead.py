"""What a target has before the session stops: here one that cannot stop yet, because it uses a variable."""

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

from egpu_sim.machines.machine import Machine
from support.moving import Control, Movable, Refused, movable
from support.simulated_gpu import STORE_SEVEN, Program, machine
from support.waiting import wait_until

CARDS = ("T4", 1)
MIB: Final = 1 << 20
BLOCK: Final = 16 * MIB
"""Of memory, with a mapping of its own."""
SEVEN: Final = STORE_SEVEN.replace("sm_80", "sm_70")
PIECE: Final = 4 * MIB
"""Of memory, that is sent in one part."""
GOOD: Final = struct.pack("<QQQQQ512x", 1, 0, 0, 0, 0)
"""A target's answer (struct moves_report)."""
DATA, LOAD, SAME, END = 12, 18, 19, 20
"""Of `enum moved_part`."""

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
    stays, goes, ends, turns = (filled({BLOCK}, value) for value in (1, 2, 4, 5))
    turned = np.full({BLOCK}, 5, np.uint8)
    turned[{BLOCK} // 2] = 6
    early, gone = function(LARGE, "k"), ok(d.cuModuleLoadData((LARGE + "// gone").encode() + b"\\0"))
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    begin = libcuda.egpuVariableBegin(ctypes.byref(address), ctypes.byref(size), ctypes.c_void_p(int(library)), b"cell")
    say(begin); wait()
    ok(d.cuMemFree(goes)); ok(d.cuMemFree(ends))
    ok(d.cuMemsetD8(int(turns) + {BLOCK} // 2, 6, 1))
    comes = filled({BLOCK} // 2, 3)
    ok(d.cuModuleUnload(gone))
    late = function(LARGE + "// late", "k")
    say(int(comes) == int(goes))
    libcuda.egpuVariableEnd(ctypes.c_void_p(int(library)))
    wait()
    say([holds(stays, {BLOCK}, 1) and bool((download(turns, np.zeros({BLOCK}, np.uint8)) == turned).all()),
         holds(comes, {BLOCK} // 2, 3), seven(early), seven(late)])
"""

LARGE_MODULE: Final = f"""
    context()
    HEAD = ".version 7.0\\n.target sm_70\\n.address_size 64\\n"
    LARGE = HEAD + ".global .b8 big[{BLOCK}];\\n" + {SEVEN!r}.split("64", 1)[1] + "// " + "x" * 50_000 + "\\n"
    libcuda = ctypes.CDLL("libcuda.so.1")
    library = ok(d.cuLibraryLoadData(
        b".version 7.0\\n.target sm_70\\n.address_size 64\\n.global .u32 cell;\\n\\0", [], [], 0, [], [], 0))
    module, gone = (ok(d.cuModuleLoadData((LARGE + name).encode() + b"\\0")) for name in ("// stays", "// gone"))
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    begin = libcuda.egpuVariableBegin(ctypes.byref(address), ctypes.byref(size), ctypes.c_void_p(int(library)), b"cell")
    say(begin); wait()
    ok(d.cuModuleUnload(gone))
    libcuda.egpuVariableEnd(ctypes.c_void_p(int(library)))
    say(0); wait()
    p = upload(np.zeros(1, np.uint32))
    ok(launch(ok(d.cuModuleGetFunction(module, b"k")), 1, 1, p))
    say(int(download(p, np.zeros(1, np.uint32))[0]))
    ok(d.cuModuleUnload(module))
    say(0); wait()
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
        wait_until(lambda: before - free() >= 4 * BLOCK, "the target has the memory")
        program.go()
        assert program.hear() is True  # the new memory is where the old one was
        move.wait()
        program.go()
        assert program.hear() == [True, True, 7, 7]
        assert before - free() < 3 * BLOCK


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


def test_modules_are_loaded_before_the_session_stops_and_once(sim: Machine, tmp_path: Path) -> None:
    """The target has room for two of the large modules."""
    fill = f"context(); ok(d.cuMemAlloc(ok(d.cuMemGetInfo())[0] - {BLOCK * 5 // 2})); say(0); wait()"
    with (
        machine(tmp_path / "other", "T4", 1, context_mib=0, driver_mib=0) as other,
        movable(sim, tmp_path / "lease") as moved,
        Program(moved.client, LARGE_MODULE) as program,
        Program(other, fill) as filler,
        free_bytes(other) as free,
    ):
        assert (program.hear(), filler.hear()) == (0, 0)
        before = free()
        move = Move(moved, other)
        wait_until(lambda: before - free() >= 2 * BLOCK, "the target has both modules")
        program.go()
        assert program.hear() == 0
        move.wait()
        assert BLOCK <= before - free() < 2 * BLOCK  # the module that went is not there, and the other one once
        program.go()
        assert (program.hear(), program.hear()) == (7, 0)
        assert before - free() < BLOCK


class Target:
    """A target that reads what is written down and restores nothing."""

    def __init__(self, moved: Movable) -> None:
        self.control = Control(moved.executor)
        self.stream, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.control.socket, [b'{"do": "send"}\n'], [theirs.fileno()])

    def parts(self) -> list[tuple[int, bytes]]:
        """Say that it can go on, and return what comes up to an end."""
        self.stream.sendall(GOOD)
        found = []
        while not found or found[-1][0] != END:
            what, _, size = struct.unpack("<IIQ", self._read(16))
            found.append((what, self._read(size)))
        return found

    def _read(self, size: int) -> bytes:
        got = b"".join(itertools.takewhile(bool, self._pieces(size)))
        assert len(got) == size
        return got

    def _pieces(self, size: int) -> Generator[bytes]:
        while size:
            piece = self.stream.recv(min(size, 1 << 20))
            size -= len(piece)
            yield piece

    def refuse(self) -> dict[str, Any]:
        self.stream.close()
        answer = self.control.answer()
        self.control.close()
        return answer


def pieces(parts: list[tuple[int, bytes]], what: int) -> dict[int, bytes]:
    """Return the memory of these parts by its address."""
    found = {}
    for kind, payload in parts:
        if kind == what:
            address, size = struct.unpack_from("<QQ", payload)
            assert size <= PIECE
            found[address] = payload[16:]
    return found


def test_memory_that_has_not_changed_is_not_sent_while_the_session_stands(sim: Machine, tmp_path: Path) -> None:
    with movable(sim, tmp_path / "lease") as moved, Program(moved.client, PROGRAM) as program:
        assert program.hear() == 0
        target = Target(moved)
        target.stream.recv(65536)  # who moves
        ahead = target.parts()
        before = pieces(ahead, DATA)
        assert len(before) >= 4 * BLOCK // PIECE
        assert [kind for kind, _ in ahead].count(LOAD) == 2
        program.go()
        assert program.hear() is True
        stopped = target.parts()
        after, same = pieces(stopped, DATA), pieces(stopped, SAME)
        (turned,) = [address for address, data in after.items() if data.count(6) == 1]
        assert before[turned] == after[turned].replace(b"\6", b"\5")
        ones = [address for address, data in before.items() if data == b"\1" * PIECE]
        assert len(ones) == BLOCK // PIECE
        assert same.keys() >= set(ones)
        assert not same.keys() & after.keys()
        new = [address for address, data in after.items() if data == b"\3" * PIECE]
        assert len(new) == BLOCK // 2 // PIECE
        assert target.refuse()["state"] == "refused"
        program.go()
        assert program.hear() == [True, True, 7, 7]
