"""Every technology on the same cards at random, with the extender and the agents killed at any step: `make
technologies` is longer. In a process of its own: the simulated driver stays loaded."""

import json
import subprocess
import sys
from pathlib import Path

from support.simulated_gpu import environment

ROUNDS, SEED = 100, 7


def test_no_card_ever_holds_what_does_not_fit_beside_each_other() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "support.technology_storm", "--rounds", str(ROUNDS), "--seed", str(SEED)],
        cwd=Path(__file__).parents[2],
        env=environment(Path("/nonexistent")),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout)
    happened = {name for name, count in counts.items() if count}
    assert {
        "extender killed",
        "agent killed",
        "binding refused",
        "made by hand",
        "instances: make",
        "instances: destroy",
    } <= happened
    placed = {name.removeprefix("placed: ") for name in happened if name.startswith("placed: ")}
    assert {"nothing", "vcuda", "qgpu", "gpushare", "vgpu", "timeslice", "mig"} <= placed
    assert counts["looked"] > 10 * ROUNDS
