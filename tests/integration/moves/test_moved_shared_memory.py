"""Programs that share memory with their executor move within their machine."""

import os
import random
import signal
import socket
import time
from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines.machine import Machine
from support.moving import Control, Refused, movable
from support.simulated_gpu import STORE_SEVEN, Program
from support.waiting import DEADLINE_SECONDS, wait_until

CARDS = ("T4", 2)
MOVES: Final = int(os.environ.get("EGPU_TEST_MOVES", "12"))
SEVEN: Final = STORE_SEVEN.replace("sm_80", "sm_70")

COPIES: Final = f"""
    import select
    context()
    f = function({SEVEN!r}, "k")
    chance = np.random.default_rng(3)
    n = 3 << 20
    s = ok(d.cuStreamCreate(1))
    pinned = ok(d.cuMemHostAlloc(n, 2))
    device = int(ok(d.cuMemHostGetDevicePointer(pinned, 0)))
    there = np.ctypeslib.as_array((ctypes.c_uint8 * n).from_address(int(pinned)))
    p, q = ok(d.cuMemAlloc(n)), ok(d.cuMemAlloc(n))
    right, rounds = True, 0
    say("begun")
    while not select.select([sys.stdin], [], [], 0)[0]:
        data = chance.integers(0, 256, n, np.uint8)
        there[:] = data
        ok(d.cuMemcpyHtoDAsync(p, pinned, n, s))
        ok(d.cuMemcpyHtoDAsync(q, data.ctypes.data, n, s))
        ok(d.cuStreamSynchronize(s))
        right = right and bool((download(p, data) == data).all()) and bool((download(q, data) == data).all())
        ok(launch(f, 1, 1, device, stream=s))
        ok(d.cuStreamSynchronize(s))
        right = right and int(there[:4].view(np.uint32)[0]) == 7
        more = ok(d.cuMemHostAlloc(5000, 0))
        ok(d.cuMemcpyDtoHAsync(more, p, 5000, s)); ok(d.cuStreamSynchronize(s))
        right = right and ctypes.string_at(int(more), 5000) == data[:5000].tobytes()
        ok(d.cuMemFreeHost(more))
        rounds += 1
    say([right, rounds])
    wait()
"""


def test_pinned_memory_and_copies_go_on_through_moves(sim: Machine, tmp_path: Path) -> None:
    chance = random.Random(int(os.environ.get("EGPU_TEST_SEED", "35")))
    with movable(sim, tmp_path, shared=True) as moved, Program(moved.client, COPIES) as program:
        assert program.hear() == "begun"
        for _ in range(MOVES):
            time.sleep(chance.random() / 4)
            moved.move(sim)
        program.go()
        right, rounds = program.hear()
        assert right
        assert rounds > 0
        program.go()


def test_a_target_on_another_machine_is_refused_before_anything_stops(sim: Machine, tmp_path: Path) -> None:
    """A relay carries bytes, and no descriptors."""
    with movable(sim, tmp_path, shared=True) as moved, Program(moved.client, COPIES) as program:
        assert program.hear() == "begun"
        control, target = Control(moved.executor), moved.target(sim)
        ours, theirs = socket.socketpair()
        socket.send_fds(control.socket, [b'{"do": "send"}\n'], [theirs.fileno()])
        head = ours.recv(1 << 16)
        target.source.sendall(head)
        ours.sendall(target.source.recv(1 << 16))
        answer = control.answer()
        assert answer == {"state": "refused", "why": "shared memory: the target is on another machine"}
        control.close()
        ours.close()
        theirs.close()
        moved.move(sim)
        program.go()
        assert program.hear()[0] is True
        program.go()


def test_a_client_that_ends_ends_its_session_at_the_new_place(sim: Machine, tmp_path: Path) -> None:
    with movable(sim, tmp_path, shared=True) as moved, Program(moved.client, COPIES) as program:
        assert program.hear() == "begun"
        moved.move(sim)
        (session,) = moved.executor.children()
        program.process.send_signal(signal.SIGKILL)
        program.process.wait(DEADLINE_SECONDS)
        wait_until(lambda: not Path(f"/proc/{session}").exists())


def test_an_executor_that_is_killed_at_the_new_place_is_an_error_in_the_program(sim: Machine, tmp_path: Path) -> None:
    with movable(sim, tmp_path, shared=True) as moved, Program(moved.client, COPIES) as program:
        assert program.hear() == "begun"
        moved.move(sim)
        (session,) = moved.executor.children()
        os.kill(session, signal.SIGKILL)
        assert program.process.wait(DEADLINE_SECONDS) != 0


def test_more_pinned_memory_than_can_be_handed_over_prevents_a_move_by_name(sim: Machine, tmp_path: Path) -> None:
    code = """
        context()
        pinned = [ok(d.cuMemHostAlloc(4096, 0)) for _ in range(400)]
        say("ready"); wait()
        for p in pinned[:100]:
            ok(d.cuMemFreeHost(p))
        more = [ok(d.cuMemHostAlloc(4096, 0)) for _ in range(10)]
        for p in pinned[100:]:
            ok(d.cuMemFreeHost(p))
        say("fewer"); wait()
    """
    with movable(sim, tmp_path, shared=True) as moved, Program(moved.client, code) as program:
        assert program.hear() == "ready"
        with pytest.raises(Refused, match="pinned host memory: more than 384 ranges"):
            moved.move(sim)
        program.go()
        assert program.hear() == "fewer"
        moved.move(sim)
        program.go()
