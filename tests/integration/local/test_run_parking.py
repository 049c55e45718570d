"""`egpu park` and `egpu wake` on a slice of `egpu run`, from outside of it."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import forked_commands
from support.waiting import wait_until

EGPU = [sys.executable, "-c", "from egpu.cli import main; main()"]
MIB = 1 << 20

PROGRAM = """
    import sys
    import numpy as np
    from cuda.bindings import driver

    driver.cuInit(0)
    _, context = driver.cuDevicePrimaryCtxRetain(0)
    driver.cuCtxSetCurrent(context)
    data = np.arange(8 << 20, dtype=np.uint32)
    _, pointer = driver.cuMemAlloc(data.nbytes)
    driver.cuMemcpyHtoD(pointer, data.ctypes.data, data.nbytes)
    print("ready", flush=True)
    for line in sys.stdin:
        back = np.zeros_like(data)
        driver.cuMemcpyDtoH(back.ctypes.data, pointer, back.nbytes)
        print(bool((back == data).all()), flush=True)
"""


class Running:
    """`egpu run` with that program, and commands for its slice."""

    def __init__(self, state: Path, *options: str) -> None:
        self.state = state
        command = [*EGPU, "run", "--simulate", "T4", "--state-dir", str(state), "--memory", "1GiB", *options]
        self.process = subprocess.Popen(
            [*command, "--", sys.executable, "-c", textwrap.dedent(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.hear() == "ready"

    def hear(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def look(self) -> str:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.hear()

    def egpu(self, command: str, *options: str) -> "subprocess.CompletedProcess[str]":
        (directory,) = self.state.glob("*/*.slice")
        arguments = [command, str(directory), "--state-dir", str(self.state), *options]
        return forked_commands.run(arguments, env=os.environ | {"COLUMNS": "200"}, timeout=120)

    def answer(self, command: str) -> dict[str, Any]:
        done = self.egpu(command, "-o", "json")
        (one,) = json.loads(done.stdout)
        return one | {"status": done.returncode}

    def processes(self) -> dict[str, Any]:
        (one,) = json.loads(self.egpu("inspect", "-o", "json").stdout)["processes"]
        return one


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    forked_commands.run(["sim", "rm", "--all", "--state-dir", str(tmp_path)], env=os.environ, timeout=120)


def test_parked_and_woken_by_hand_and_by_its_next_call(state: Path) -> None:
    run = Running(state, "--parkable")
    try:
        parked = run.answer("park")
        assert (parked["status"], parked["answer"], parked["parkedBytes"]) == (0, "DONE", 32 * MIB)
        assert run.processes()["parkedBytes"] == 32 * MIB
        woken = run.answer("wake")
        assert (woken["status"], woken["answer"], woken["parkedBytes"]) == (0, "WOKEN", 0)
        assert run.look() == "True"
        assert run.answer("park")["answer"] == "DONE"
        assert run.look() == "True"
        wait_until(lambda: run.processes()["wakes"] == 2, "it is awake")
        assert "parked" in run.egpu("park").stdout
    finally:
        assert run.process.stdin
        run.process.stdin.close()
        assert run.process.wait(60) == 0


def test_a_slice_without_parking_is_refused_by_name(state: Path) -> None:
    run = Running(state)
    try:
        refused = run.egpu("park")
        assert refused.returncode == 2
        assert "egpu run --parkable" in refused.stderr
    finally:
        run.process.kill()
        run.process.wait(60)


def test_parking_needs_one_card(state: Path) -> None:
    command = ["run", "--simulate", "T4", "--state-dir", str(state), "--gpus", "2", "--parkable", "--", "true"]
    done = forked_commands.run(command, env=os.environ, timeout=120)
    assert (done.returncode, "--parkable" in done.stderr) == (2, True)
