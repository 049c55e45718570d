"""Slices of a simulated card that can be parked, programs in them, and an arbiter for them."""

import textwrap
import threading
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from egpu.adapters import native
from egpu.adapters.slices.asking import ask_to_park, set_room
from egpu.adapters.slices.pages import (
    DevicePolicy,
    Mode,
    Parking,
    UsageReader,
    create_usage,
    write_policy,
)
from egpu.adapters.slices.rooms import Rooms, SharedCard, SharedSlice
from egpu.adapters.slices.usage import ParkAnswer, ProcessParking
from egpu.core.arbiter import Park
from egpu_sim.machines.machine import Machine
from support.simulated_gpu import Program, run
from support.waiting import wait_until

MIB = 1 << 20
CARD = 80 * MIB
"""The room that the programs share: GiB of the card as MiB, and the rest of the card is full."""
SIZE = 60 * MIB
CONTEXT = 4 * MIB
"""More than a program's context and code."""


LIBRARY = "libegpu-interposer.so"

PRELUDE = """
MIB = 1 << 20

def numbers(seed, count):
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32)

context()
"""


class Slice:
    """A slice of the machine's one card, and the programs in it."""

    def __init__(self, machine: Machine, directory: Path, *, limit: int, parkable: bool = True) -> None:
        directory.mkdir()
        self.machine, self.directory = machine, directory
        (directory / LIBRARY).symlink_to(native.path(LIBRARY))
        card = machine.cards[0]
        line = DevicePolicy(
            uuid=card.uuid, minor=card.minor, mode=Mode.CAP, core_ppm=1_000_000, memory_limit_bytes=limit
        )
        write_policy(directory / "policy", [line], parking=Parking() if parkable else None)
        create_usage(directory / "usage")
        self.environment = {"LD_PRELOAD": str(directory / LIBRARY)}

    def run(self, code: str) -> Any:
        return run(self.machine, PRELUDE + textwrap.dedent(code), self.environment)

    def start(self, code: str) -> Program:
        return Program(self.machine, PRELUDE + textwrap.dedent(code), self.environment)

    def parking(self) -> ProcessParking:
        (process,) = UsageReader(self.directory / "usage").read().processes
        return process.parking

    def ask(self, *, park: bool) -> ParkAnswer:
        request = ask_to_park(self.directory / "policy", park=park)
        wait_until(lambda: self.parking().answered == request, "an answer")
        return self.parking().answer

    def state(self) -> tuple[int, int, int]:
        said = self.parking()
        return said.parked_bytes, said.parks, said.wakes


def used(sim: Machine) -> int:
    """Bytes of the card in use, seen from outside of all slices."""
    return run(sim, "n.nvmlInit(); say(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)).used)")


def filler(sim: Machine, left: int) -> Program:
    """Takes the card, but for so many bytes."""
    program = Program(sim, f"context(); ok(d.cuMemAlloc(ok(d.cuMemGetInfo())[0] - {left})); say('full'); wait()")
    assert program.hear() == "full"
    return program


class Arbiter:
    """Runs as in the agent, in a thread."""

    def __init__(self, slices: list[SharedSlice], budget: int) -> None:
        self.told: list[tuple[Hashable, Park]] = []
        self.rooms = Rooms(lambda: {"GPU": SharedCard(budget, slices)}, told=lambda *said: self.told.append(said))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(self.rooms.step()):
            pass

    def __enter__(self) -> "Arbiter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def shared(one: Slice, *, idle_seconds: float = 0.1, stays: bool = False) -> SharedSlice:
    """Return the slice for an arbiter, with no more room than its context."""
    set_room(one.directory / "policy", room_bytes=CONTEXT, until_ns=time.monotonic_ns() + 10**10)
    return SharedSlice(
        key=one.directory.name,
        policy=one.directory / "policy",
        usage=one.directory / "usage",
        limit_bytes=SIZE + CONTEXT,
        floor_bytes=CONTEXT,
        idle_seconds=idle_seconds,
        stays=stays,
    )


PROGRAM = """
import random
random.seed(SEED)
ADD = function(VECTOR_ADD, "add")
N, PART = SIZE // 12, 4096
say("ready")
wait()
host = [numbers(SEED + k, N).astype(np.float32) for k in range(3)]
A, B, C = map(upload, host)
def right():
    return all(bool((download(p, want) == want).all()) for p, want in zip((A, B, C), host))
for turn in range(TURNS):
    at = random.randrange(N - PART)
    parts = [int(p) + 4 * at for p in (A, B, C)]
    ok(launch(ADD, PART // 256, 256, *parts, (PART, ctypes.c_uint32)))
    host[2][at : at + PART] = host[0][at : at + PART] + host[1][at : at + PART]
    ok(d.cuMemcpyDtoD(int(A), int(C), 4 * PART))
    host[0][:PART] = host[2][:PART]
    ok(d.cuCtxSynchronize())
    say(turn)
    time.sleep(random.random() * PAUSE)
say(right())
"""


def start(one: Slice, seed: int, *, turns: int, pause: float) -> Program:
    values = {"SEED": seed, "TURNS": turns, "PAUSE": pause, "SIZE": SIZE}
    return one.start("".join(f"{name} = {value}\n" for name, value in values.items()) + PROGRAM)


def ends_right(program: Program, turns: int) -> bool:
    return [program.hear() for _ in range(turns + 1)] == [*range(turns), True]
