"""Runs whose kubelet was killed in the middle of starting them: told apart from runs that were lost."""

import asyncio
import sys
from pathlib import Path

import pytest

from egpu_sim.cluster.kubelet import runtime
from egpu_sim.cluster.kubelet.runtime import NeverStarted, Runtime
from support.waiting import DEADLINE_SECONDS


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "SUPERVISOR_SECONDS", 0.1)


async def test_a_directory_without_a_pid_file_never_started(tmp_path: Path) -> None:
    with pytest.raises(NeverStarted):
        await Runtime(private_mounts=False).wait(tmp_path)
    assert not (tmp_path / "exit").exists(), "so the next kubelet may start it"


async def test_a_run_that_is_still_being_started_is_waited_for(tmp_path: Path) -> None:
    """However slow it is: its command may still begin, and must not be started twice."""
    starting = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; time.sleep(60)", "--supervise", str(tmp_path)
    )
    waiting = asyncio.create_task(Runtime(private_mounts=False).wait(tmp_path))
    done, _ = await asyncio.wait([waiting], timeout=1.0)
    assert not done
    starting.kill()
    await starting.wait()
    with pytest.raises(NeverStarted):
        await asyncio.wait_for(waiting, DEADLINE_SECONDS)


async def test_a_supervisor_that_is_gone_has_taken_its_command_with_it(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text("0 0 0 0\n")
    lost = await Runtime(private_mounts=False).wait(tmp_path)
    assert lost.code == 137
    assert (tmp_path / "exit").exists()
