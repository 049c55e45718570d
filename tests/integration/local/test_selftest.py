"""`egpu selftest` on a simulated card: what it finds where all is well, where something does not hold, and what it
leaves behind when it is interrupted."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from egpu.cli import selfchecks
from egpu.cli.app import app
from egpu.cli.findings import Finding, State
from egpu_base.errors import Unavailable
from egpu_sim.machines import machine as simulator
from support.process_table import of_place
from support.slices import LIBRARY, compile_c
from support.waiting import DEADLINE_SECONDS, wait_until

ARGUMENTS = [sys.executable, "-m", "egpu", "selftest", "--simulate", "T4"]


EXAMINED = """
import sys, msgspec
from egpu.cli import selfchecks, thorough
only, egpu = msgspec.json.decode(sys.argv[1])
told = []
found = selfchecks.examine("T4", 0, tell=told.append, only=only, egpu=egpu, further=thorough.THOROUGH)
print(msgspec.json.encode((told, found)).decode())
"""


def examined(*only: str, egpu: list[str]) -> Mapping[str, Finding]:
    """In a process of its own: NVML's package keeps the first library, and so the first machine, that it loads."""
    asked = msgspec.json.encode((only, egpu)).decode()
    done = subprocess.run(
        [sys.executable, "-c", EXAMINED, asked], capture_output=True, text=True, timeout=240, check=True
    )
    told, found = msgspec.json.decode(done.stdout, type=tuple[list[str], dict[str, Finding]])
    assert told == [f"{name} …" for name in only]
    return found


def test_everything_holds_on_a_simulated_card(state_dir: Path) -> None:
    done = subprocess.run(
        [*ARGUMENTS, "-o", "json"], capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(state_dir)},
    )  # fmt: skip
    found = {row["check"]: row for row in json.loads(done.stdout)}
    states = {name: row["state"] for name, row in found.items()}
    assert list(states) == list(selfchecks.CHECKS)
    assert "wrong" not in states.values(), done.stdout
    assert done.returncode == 0
    assert "simulated Tesla T4, driver 580" in found["driver"]["found"]
    assert found["memory limit"]["found"] == "1024 MiB allocated in a slice of 1024 MiB, then CUDA_ERROR_OUT_OF_MEMORY"
    assert found["executors"]["found"].startswith("vectoradd: correct on a lease; 1024 MiB allocated")
    assert states["runtime library"] == "limited"
    assert done.stderr.splitlines() == [f"{name} …" for name in selfchecks.CHECKS]
    assert list(state_dir.iterdir()) == []


def test_a_slice_limits_each_kind_of_memory_and_is_free_after_a_kill() -> None:
    found = examined("kinds of memory", "two slices", "killed program", "PyTorch", egpu=[sys.executable, "-m", "egpu"])
    assert found["kinds of memory"].found.endswith("arrays 1024 MiB of 1024 MiB")
    states = {name: one.state for name, one in found.items() if name != "two slices"}  # whose figure needs quiet
    assert states == {"kinds of memory": State.OK, "killed program": State.OK, "PyTorch": State.UNSEEN}


def test_a_slice_that_holds_nothing_is_wrong(tmp_path: Path) -> None:
    """With an interposer that does nothing at all."""
    (tmp_path / "nothing.c").write_text("int nothing;\n")
    compile_c(tmp_path / LIBRARY, "-shared", "-fPIC", tmp_path / "nothing.c", flags=())
    broken = (
        "import pathlib; from egpu_base.native import Artefacts as n; before = n.directories; "
        f"n.directories = lambda self: (pathlib.Path({str(tmp_path)!r}), *before(self)); "
        "from egpu.cli import main; main()"
    )
    limits = "what a slice shows", "memory limit", "compute limit", "executors", "kinds of memory", "two slices"
    found = examined(*limits, egpu=[sys.executable, "-c", broken])
    assert {name: one.state for name, one in found.items()} == dict.fromkeys(found, State.WRONG)
    assert "of 15360 MiB, in a slice of 1024" in found["what a slice shows"].found
    assert all(one.mend for one in found.values())


def test_what_is_wrong_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver(*_: object, **__: object) -> bool:
        raise Unavailable("NVML does not start: driver not loaded")

    monkeypatch.setattr(selfchecks, "has_driver", no_driver)
    done = CliRunner().invoke(app, ["selftest", "-o", "json"])
    assert done.exit_code == 1
    driver, *others = json.loads(done.stdout)
    assert (driver["state"], driver["found"]) == ("wrong", "NVML does not start: driver not loaded")
    assert "egpu selftest --simulate" in driver["mend"]
    assert {row["state"] for row in others} == {"unseen"}


def test_a_card_that_is_not_there_is_refused() -> None:
    asked = [*ARGUMENTS, "--gpu", "3"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no GPU 3. Use one of: 0" in done.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_interrupts_it_finds_nothing_of_it_left(state_dir: Path, number: signal.Signals, status: int) -> None:
    """While a lease is held, and everything that it takes runs."""
    last = (
        "import egpu.cli.selfchecks as checks; checks.CHECKS = {'executors': checks.CHECKS['executors']}; "
        "from egpu.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", last, *ARGUMENTS[3:]], env={**os.environ, "XDG_RUNTIME_DIR": str(state_dir)}
    )
    wait_until(lambda: bool(list(state_dir.glob("*/serve/leases/lease-*/pid"))))
    (directory,) = state_dir.glob("egpu-selftest-*")
    state = simulator.open_machine(directory / "T4" / "machine").state
    process.send_signal(number)
    assert process.wait(DEADLINE_SECONDS) == status
    assert list(state_dir.iterdir()) == []
    assert not state.exists()
    assert of_place(directory, f"XDG_RUNTIME_DIR={state_dir}") == []
