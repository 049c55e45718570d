"""Run a program while its slice is parked and woken at random moments."""

import random
import subprocess
import time
from collections.abc import Mapping, Sequence
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


def run_parked(command: Sequence[str], environment: Mapping[str, str], directory: Path, seed: int) -> Done:
    """Run the command to its end. `directory`: the slice that is parked, of the program or of its executor."""
    chance = random.Random(seed)
    parks: dict[int, int] = {}
    end = time.monotonic() + SECONDS
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while process.poll() is None:
                assert time.monotonic() < end, "the program is stuck"
                time.sleep(chance.random() * LONGEST_PAUSE)
                _ask(directory / "policy", chance)
                for one in UsageReader(directory / "usage").read().processes:
                    parks[one.pid] = max(one.parking.parks, parks.get(one.pid, 0))
            output, complaints = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 0, f"exit {process.returncode}\n{output}\n{complaints}"
    return Done(output, sum(parks.values()))


def _ask(policy: Path, chance: random.Random) -> None:
    """Ask to park only an idle program, or also a busy one, or to wake."""
    kind = chance.choice(("idle", "busy", "busy", "wake"))
    if kind == "busy":
        set_room(policy, room_bytes=0, until_ns=0, park_hold_ns=HOLD_NS)
    else:
        ask_to_park(policy, park=kind == "idle")
