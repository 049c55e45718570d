"""A storm over slices that share the room of a card: programs and arbiters are killed at random moments, one by one and
all at once, beside slices that lie, and programs that are stopped with their memory on the card.

After each round, every honest program that lives has had a turn, with all of its bytes. In the end nothing is left.
"""

import contextlib
import mmap
import multiprocessing
import random
import select
import signal
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final

from egpu.adapters.slices.pages import USAGE_HEADER, USAGE_ROW, USAGE_ROWS_OFFSET, UsageReader
from egpu.adapters.slices.reaping import reap
from egpu.adapters.slices.rooms import Rooms, SharedCard, SharedSlice
from egpu_sim.machines.machine import Machine
from support.parking_slices import CARD, CONTEXT, SIZE, Slice, filler, shared, used
from support.simulated_gpu import Program
from support.waiting import wait_until

HONEST: Final = 4
ROWS: Final = 8
"""The rows of a usage file in which the liar lies: it has one program."""
ROOM_ASKED: Final = USAGE_HEADER.size + 56
HEARTBEAT, PARKED = 32, 40
LIES_SECONDS: Final = 0.02
STUCK_SECONDS: Final = 180.0
"""Longer than the turns of all slices, a slice that does not answer, and a busy machine."""

WORKER = """
import random
random.seed(SEED)
PART = 1 << 18
say("ready")
wait()
host = numbers(SEED, SIZE // 4)
device = int(upload(host))
while True:
    at = random.randrange(len(host) - PART)
    host[at : at + PART] = numbers(random.randrange(1 << 30), PART)
    ok(d.cuMemcpyHtoD(device + 4 * at, host[at : at + PART].ctypes.data, 4 * PART))
    say(bool((download(device, host) == host).all()))
    wait()
"""

STOPPED = """
say("ready")
wait()
device = upload(numbers(SEED, SIZE // 4))
say("stops")
wait()
"""


def arbitrate(slices: Sequence[SharedSlice], budget: int) -> None:
    """Be the arbiter, until killed."""
    rooms = Rooms(lambda: {"GPU": SharedCard(budget, slices)})
    while True:
        time.sleep(rooms.step())


@contextlib.contextmanager
def lying(one: Slice) -> Generator[None]:
    """Let a slice say all the time that it is busy, waits for room, and has parked as much as it may have."""
    over = threading.Event()

    def lie(page: mmap.mmap) -> None:
        while not over.wait(LIES_SECONDS):
            now = struct.pack("<Q", time.monotonic_ns())
            page[ROOM_ASKED : ROOM_ASKED + 8] = now
            for row in range(ROWS):
                at = USAGE_ROWS_OFFSET + row * USAGE_ROW.size
                if page[at]:  # not a free row
                    page[at + HEARTBEAT : at + HEARTBEAT + 8] = now
                    page[at + PARKED : at + PARKED + 8] = struct.pack("<Q", SIZE)

    with (one.directory / "usage").open("r+b") as file, mmap.mmap(file.fileno(), 0) as page:
        thread = threading.Thread(target=lie, args=(page,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


class Storm:
    """Honest slices, a liar, and a slice whose program is stopped now and then. `happened` counts the kills."""

    def __init__(self, sim: Machine, root: Path, seed: int) -> None:
        self.sim = sim
        self.chance = random.Random(seed)
        self.honest, (self.liar, self.sleeper) = (
            [Slice(sim, root / f"{kind}-{at}", limit=SIZE + CONTEXT) for at in range(count)]
            for kind, count in (("honest", HONEST), ("bad", 2))
        )
        self.slices = [*self.honest, self.liar, self.sleeper]
        self.terms = [shared(one) for one in self.slices]
        self.happened: Counter[str] = Counter()
        self.programs: dict[Slice, Program] = {}
        self.arbiter = self._new_arbiter()

    def run(self, rounds: int, tell: Callable[[str], None] = lambda line: None) -> None:
        """Run so many rounds, and end everything."""
        with ExitStack() as stack:
            stack.callback(self._end)
            for one in self.slices:
                self._start(one)
            stack.enter_context(filler(self.sim, CARD))
            stack.enter_context(lying(self.liar))
            self.arbiter.start()
            for number in range(rounds):
                began = time.monotonic()
                self._round()
                tell(f"round {number + 1} of {rounds}: {time.monotonic() - began:.1f} s, {dict(self.happened)}")
            self._end()
            for one in self.slices:
                reap(one.directory / "usage")
            self._nothing_is_left()

    def _round(self) -> None:
        for program in self.programs.values():
            program.go()
        time.sleep(self.chance.random() * 0.5)
        if self.chance.random() < 0.3:
            self.programs[self.sleeper].process.send_signal(signal.SIGSTOP)
            self.happened["stopped"] += 1
            time.sleep(self.chance.random())
        everything = self.chance.random() < 0.1
        killed = [one for one in self.slices if everything or one in (self.sleeper, self.liar) or self._strikes(0.2)]
        for one in killed:
            self.programs[one].kill()
            self.happened["programs"] += 1
        if everything or self._strikes(0.4):
            self.arbiter.kill()
            self.arbiter.join()
            self.happened["arbiters"] += 1
            time.sleep(self.chance.random())
            self.arbiter = self._new_arbiter()
            self.arbiter.start()
        self.happened["everything"] += everything
        for one in self.honest:
            if one not in killed:
                assert self._hear(one) is True, "bytes were lost"
                self.happened["turns"] += 1
        for one in killed:
            self._start(one)

    def _strikes(self, part: float) -> bool:
        return self.chance.random() < part

    def _new_arbiter(self) -> SpawnProcess:
        budget = len(self.slices) * CONTEXT + CARD
        return multiprocessing.get_context("spawn").Process(target=arbitrate, args=(self.terms, budget), daemon=True)

    def _start(self, one: Slice) -> None:
        code = WORKER if one in self.honest else STOPPED
        program = one.start(f"SEED, SIZE = {self.chance.randrange(1 << 20)}, {SIZE}\n{code}")
        self.programs[one] = program
        assert self._hear(one) == "ready"

    def _hear(self, one: Slice) -> object:
        """Hear the slice's program. It says one thing at a time, so nothing is buffered."""
        stdout = self.programs[one].process.stdout
        assert stdout
        assert select.select([stdout], [], [], STUCK_SECONDS)[0], f"the program of {one.directory.name} is stuck"
        return self.programs[one].hear()

    def _end(self) -> None:
        for program in self.programs.values():
            program.kill()
            program.__exit__()
        self.programs.clear()
        if self.arbiter.is_alive():
            self.arbiter.kill()
            self.arbiter.join()

    def _nothing_is_left(self) -> None:
        """Check the accounts; the caller's check of the card comes when the filler has ended."""
        for one in self.slices:
            usage = UsageReader(one.directory / "usage").read()
            assert usage.processes == (), one.directory.name
            assert usage.devices[0].memory_bytes == 0, one.directory.name


def storm(sim: Machine, root: Path, rounds: int, seed: int, tell: Callable[[str], None]) -> "Counter[str]":
    """Run a storm on a machine of one card. Returns what happened."""
    one = Storm(sim, root, seed)
    one.run(rounds, tell)
    wait_until(lambda: used(sim) == 0, "nothing is left on the card")
    return one.happened
