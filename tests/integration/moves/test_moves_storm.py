"""Moves during which a part is killed at a random time. Each program goes on and counts right, or ends because the part
that was killed had its session."""

import contextlib
import os
import random
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines.machine import Machine
from support.long import or_long
from support.mixed_load import COUNT
from support.moving import Control, Movable, MovableExecutor, movable
from support.simulated_gpu import Program, run
from support.waiting import DEADLINE_SECONDS, wait_until

CARDS = ("T4", 2)
ROUNDS: Final = or_long(1, 18)
"""Of each victim and way: 216 in a long run."""

VICTIMS: Final = ("source", "session of the source", "target", "session of the target", "daemon", "client")

WORK: Final = f"""
    context()
    import select
    f, counter, launched = function({COUNT!r}, "count"), upload(np.zeros(1, np.uint32)), 0
    big = np.arange(1 << 20, dtype=np.uint32)
    pb, right = upload(big), True
    say("begun")
    while True:
        for _ in range(20):
            ok(launch(f, 1, 1, counter, (1, ctypes.c_uint32)))
        launched += 20
        right = right and int(download(counter, np.zeros(1, np.uint32))[0]) == launched
        if select.select([sys.stdin], [], [], 0)[0]:
            wait()
            say(right and bool((download(pb, big) == big).all()))
"""


def kill(victim: str, source: MovableExecutor, target: MovableExecutor, control: Control, program: Program) -> None:
    """End a part now. It may have ended by itself meanwhile."""
    executor = source if "source" in victim else target
    with contextlib.suppress(OSError):
        if victim == "daemon":
            control.socket.shutdown(socket.SHUT_RDWR)
        elif victim == "client":
            program.process.kill()
        elif victim.startswith("session"):
            for pid in executor.children():
                os.kill(pid, signal.SIGKILL)
        else:
            executor.process.kill()


def has_left(source: MovableExecutor) -> bool:
    """Return whether the sessions have left the source: it says so, and ends."""
    with contextlib.suppress(OSError):
        control = Control(source)
        there = "sessions" in control.ask("look")
        control.close()
        if there:
            return False
    source.process.wait(DEADLINE_SECONDS)
    source.reader.join(DEADLINE_SECONDS)
    return any(said["event"] == "moved" for said in source.events)


def struck_move(moved: Movable, sim: Machine, program: Program, victim: str, delay: float) -> bool:
    """Move, and kill the victim after the delay. Return whether the sessions have left."""
    source, target, control = moved.executor, moved.target(sim), Control(moved.executor)
    strike = threading.Timer(delay, kill, (victim, source, target, control, program))
    strike.start()
    with contextlib.suppress(OSError):  # the source or this connection is gone
        if control.send(target.source)["state"] == "restored":
            moved.bridge.target = target.socket
            control.ask("finish")
    strike.join()
    control.close()
    left = has_left(source)
    gone, moved.executor = (source, target) if left else (target, source)
    gone.stop()
    moved.bridge.target = moved.executor.socket
    return left


def goes_on(program: Program) -> bool:
    """Return whether the program still runs; if so, its results are right."""
    with contextlib.suppress(OSError):
        program.go()
    assert program.process.stdout
    line = program.process.stdout.readline()
    assert line in {"", "true\n"}
    return line != ""


MAY_END: Final = {
    "source": {False},
    "session of the source": {False},
    "target": {True},
    "session of the target": {True},
    "daemon": set[bool](),
    "client": {True, False},
}
"""A program may end if its session was in the victim: when the sessions have left, or when they have not."""


def free_bytes(sim: Machine) -> list[int]:
    code = """
        ok(d.cuInit(0))
        def free(card):
            ok(d.cuCtxSetCurrent(ok(d.cuCtxCreate(None, 0, card))))
            return ok(d.cuMemGetInfo())[0]
        say([free(card) for card in range(2)])
    """
    return run(sim, code)


@pytest.mark.parametrize("shared", [False, True], ids=["bridge", "shared"])
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_part_of_a_move_ends_no_program_but_its_own(
    sim: Machine, tmp_path: Path, victim: str, shared: bool
) -> None:
    seed = int(os.environ.get("EGPU_TEST_SEED", "0")) or random.randrange(1 << 30)
    print(f"EGPU_TEST_SEED={seed}")
    chance, free = random.Random(seed), free_bytes(sim)
    rounds, world = 0, 0
    while rounds < ROUNDS:
        world += 1
        with movable(sim, tmp_path / str(world), shared=shared) as moved, Program(moved.client, WORK) as program:
            assert program.hear() == "begun"
            began = time.monotonic()
            moved.move(sim)
            usual = time.monotonic() - began
            running = True
            while running and rounds < ROUNDS:
                rounds += 1
                left = struck_move(moved, sim, program, victim, chance.random() * 1.2 * usual)
                running = goes_on(program)
                assert running or left in MAY_END[victim], f"round {rounds}: left {left}"
            if not running:
                wait_until(lambda: moved.executor.process.poll() is not None or not moved.executor.children())
    assert free_bytes(sim) == free
