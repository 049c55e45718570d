"""Programs and arbiters of slices that share room are killed, beside hostile ones: the living keep every byte."""

from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines.machine import Machine
from support.long import or_long
from support.parking_storm import storm

CARDS = ("A100-80G", 1)
ROUNDS: Final = or_long(2, 200)
ROUND_SECONDS: Final = 60
"""On a busy machine, with the start and the end of the storm."""


@pytest.mark.timeout(300 + ROUNDS * ROUND_SECONDS)
def test_nobody_loses_a_byte_or_stays_stuck_and_nothing_leaks(sim: Machine, tmp_path: Path) -> None:
    happened = storm(sim, tmp_path, ROUNDS, seed=20, tell=print)
    assert happened["turns"] >= ROUNDS, "most honest programs live through a round"
    assert happened["arbiters"] > 0
