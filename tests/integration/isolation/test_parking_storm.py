"""Programs and arbiters of slices that share room are killed, beside hostile ones: the living keep every byte."""

from pathlib import Path

from egpu_sim.machines.machine import Machine
from support.long import or_long
from support.parking_storm import storm

CARDS = ("A100-80G", 1)


def test_nobody_loses_a_byte_or_stays_stuck_and_nothing_leaks(sim: Machine, tmp_path: Path) -> None:
    rounds = or_long(2, 200)
    happened = storm(sim, tmp_path, rounds, seed=20, tell=print)
    assert happened["turns"] >= rounds, "most honest programs live through a round"
    assert happened["arbiters"] > 0
