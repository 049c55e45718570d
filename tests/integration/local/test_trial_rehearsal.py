"""The trial for a machine with a real GPU, packed and run on a simulated card that stands in the real one's place."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from egpu_sim.machines.machine import Machine
from support.local_pool import built
from support.repository import ROOT

pytestmark = pytest.mark.skipif(not built(), reason="the native parts are not built")

CARDS = ("H100-80G", 1)
STEPS: Final = ("facts", "limits", "pool-as-it-is", "processes")
"""Without compiled kernels and figures of speed: some 25 seconds on two quiet cores."""
BUDGET_SECONDS: Final = 150


def test_the_packed_trial_runs_its_steps_on_a_simulated_card(sim: Machine, tmp_path: Path) -> None:
    """So that neither its packing nor its steps go stale while there is no real card. It ends what it started, and no
    program of the same build that another test runs beside it."""
    packed, out = tmp_path / "packed", tmp_path / "out"
    ours = {**os.environ, "REHEARSAL": "1", "PACKED": str(packed), "MOST_MIB": "1000"}
    pack = ["bash", ROOT / "tests/gpu/trial/pack.sh"]
    done = subprocess.run(pack, cwd=ROOT, env=ours, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert list(packed.rglob("egpu-executor"))
    assert not list(packed.rglob("tests"))  # neither of the build, nor those for libFuzzer: 38 MiB
    ours |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(sim.driver_dir),
        "OUT": str(out),
        "TRIAL_REPO": str(ROOT),
        "TRIAL_WORK": str(tmp_path / "work"),
    }
    run = ["bash", packed / "trial.sh", "--budget", str(BUDGET_SECONDS), *STEPS]
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", ROOT / "build/native/program"])
    subprocess.run(run, env=ours, capture_output=True, timeout=BUDGET_SECONDS + 30, check=False)
    struck = bystander.poll() is not None
    bystander.kill()
    bystander.wait()
    assert not struck
    results: list[dict[str, Any]] = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {one["step"]: one["status"] for one in results} == dict.fromkeys((*STEPS, "end"), "ok"), results
