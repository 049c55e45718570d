"""Sessions of an executor are parked as programs are: their memory leaves the card, and the next call of the client
brings it back, over shared memory and over a network. The client notices only the time."""

import contextlib
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from egpu.adapters.slices.asking import ask_to_park
from egpu.adapters.slices.usage import ParkAnswer
from egpu_sim.machines.machine import Machine
from integration.isolation.test_parking import MIX, WORKER
from support.long import or_long
from support.parking_slices import MIB, PRELUDE, Slice, filler, used
from support.remote_gpu import Transport, remote
from support.simulated_gpu import Program, run
from support.waiting import wait_until

CARDS = ("A100-40G", 1)
TRANSPORTS: tuple[Transport, ...] = ("shm", "tcp")
WORKS = 36 * MIB
"""What WORKER can park."""


@contextlib.contextmanager
def session(
    sim: Machine, folder: Path, transport: Transport, code: str, *, limit: int = 64 * MIB
) -> Generator[tuple[Slice, Program]]:
    """A parkable slice, and a program of its executor."""
    folder.mkdir(exist_ok=True)
    mine = Slice(sim, folder / "slice", limit=limit)
    arguments = ("--slice", str(mine.directory), "--grace", "1")
    with (
        remote(sim, folder, transport, *arguments, env=mine.environment) as (client, _, _),
        Program(client, PRELUDE + code) as program,
    ):
        yield mine, program


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_next_call_brings_the_memory_back(sim: Machine, tmp_path: Path, transport: Transport) -> None:
    code = WORKER + "work(); say(ok(d.cuMemGetInfo())); wait(); say(ok(d.cuMemGetInfo())); wait(); say(right()); wait()"
    with session(sim, tmp_path / "one", transport, code) as (mine, program):
        info = program.hear()
        before = used(sim)
        assert mine.ask(park=True) is ParkAnswer.DONE
        assert mine.state() == (WORKS, 1, 0)
        assert used(sim) == before - WORKS, "the card has the room"
        program.go()
        assert program.hear() == info, "what the program sees of its memory stays"
        assert mine.state() == (WORKS, 1, 0), "and to ask for it wakes nothing"
        program.go()
        assert program.hear() == [True] * 4
        assert mine.state() == (0, 1, 1)


def test_it_waits_for_room(sim: Machine, tmp_path: Path) -> None:
    code = WORKER + "work(); say(0); wait(); say(right()); wait()"
    with session(sim, tmp_path / "one", "shm", code) as (mine, program):
        program.hear()
        assert mine.ask(park=True) is ParkAnswer.DONE
        with filler(sim, 8 * MIB):
            program.go()
            wait_until(lambda: mine.parking().wait_ns == 0 and mine.state() == (WORKS, 1, 0), "it is parked")
        assert program.hear() == [True] * 4


def test_a_session_that_has_waited_often(sim: Machine, tmp_path: Path) -> None:
    """The session makes a thread for each call that waits beside others: more than the gate knows at once. It finds out
    which have ended, in the sandbox too."""
    waits = """
import threading
def waits():
    context()
    for _ in range(1200): download(SMALL, little)
threads = [threading.Thread(target=waits) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    code = WORKER + f"work()\n{waits}say(0); wait(); say(right()); wait()"
    with session(sim, tmp_path / "one", "shm", code) as (mine, program):
        program.hear()
        assert mine.ask(park=True) is ParkAnswer.DONE
        program.go()
        assert program.hear() == [True] * 4


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_parked_at_random_points_it_computes_the_same_bits(sim: Machine, tmp_path: Path, transport: Transport) -> None:
    wanted = or_long(4, 100)
    mix = MIX.replace("SEED", "7").replace("STEPS", str(8 * wanted))
    plain = run(sim, PRELUDE + mix.replace("PAUSE", "0"))
    answers: list[object] = []
    code = mix.replace("PAUSE", "0.2") + "wait()"
    with session(sim, tmp_path / "one", transport, code, limit=256 * MIB) as (mine, program):
        said = threading.Thread(target=lambda: answers.append(program.hear()))
        said.start()
        while said.is_alive():
            ask_to_park(mine.directory / "policy", park=True)
            said.join(0.05)
        parks = mine.parking().parks
    assert answers == [plain]
    assert parks >= wanted, f"{parks} parks"
