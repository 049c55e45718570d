"""Park and wake a slice at random moments while a program runs in it."""

import contextlib
import random
import subprocess
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from egpu.adapters.slices.asking import ask_to_park, set_room
from egpu.adapters.slices.pages import UsageReader

SECONDS: Final = 240.0
HOLD_NS: Final = 2_000_000_000
"""Calls of a busy program are held for as long as an arbiter holds them."""
LONGEST_PAUSE: Final = 0.08


@dataclass(frozen=True)
class Done:
    """What the program printed, and how often its processes were parked."""

    output: str
    parks: int


@contextlib.contextmanager
def parked_at_random(
    slice_directory: Callable[[], Path | None], seed: int, *, longest_pause: float = LONGEST_PAUSE
) -> Generator[dict[int, int]]:
    """Ask the slice again and again to park or to wake, until the end. Yields the number of parks of each process.

    `slice_directory` returns None while there is no slice yet, or no more. `longest_pause`: seconds between questions.
    """
    chance = random.Random(seed)
    parks: dict[int, int] = {}
    over = threading.Event()

    def keep_asking() -> None:
        while not over.wait(chance.random() * longest_pause):
            if (directory := slice_directory()) is None:
                continue
            with contextlib.suppress(FileNotFoundError):  # the slice is only being made, or has ended
                _ask(directory / "policy", chance)
                for one in UsageReader(directory / "usage").read().processes:
                    parks[one.pid] = max(one.parking.parks, parks.get(one.pid, 0))

    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(keep_asking)
        try:
            yield parks
        finally:
            over.set()
        asking.result()


def run_parked(command: Sequence[str], environment: Mapping[str, str], directory: Path, seed: int) -> Done:
    """Run the command to its end. `directory`: the slice that is parked, of the program or of its executor."""
    with parked_at_random(lambda: directory, seed) as parks:
        run = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert run.returncode == 0, f"exit {run.returncode}\n{run.stdout}\n{run.stderr}"
    return Done(run.stdout, sum(parks.values()))


def _ask(policy: Path, chance: random.Random) -> None:
    """Ask to park only an idle program, or also a busy one, or to wake."""
    kind = chance.choice(("idle", "busy", "busy", "wake"))
    if kind == "busy":
        set_room(policy, room_bytes=0, until_ns=0, park_hold_ns=HOLD_NS)
    else:
        ask_to_park(policy, park=kind == "idle")
