"""The end of an executor: nothing of it runs any more, nobody is left to be waited for, and nobody else is ended."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.parents import ThisProcess
from egpu.adapters.executors.process import Executor, boot_id, find
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.adapters.processes import Process, start_time
from support.waiting import DEADLINE_SECONDS, wait_until


class Owner(msgspec.Struct, frozen=True):
    """Nobody in particular."""


WITH_SESSION = """
(exec -a egpu-session sleep 600) &
echo $!
exec sleep 600
"""


def executor_of(child: subprocess.Popen[str], directory: Path) -> Executor[Owner]:
    directory.mkdir(parents=True)
    process = Process.of(child.pid)
    record = ExecutorRecord(
        name=directory.name, owner=Owner(), cards=(), minors={}, pid=process.pid, start_time=process.start_time
    )
    made = Executor(directory, record, Confinement())
    made._child = child  # type: ignore[assignment]
    return made


@pytest.fixture
def with_session() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process in a group of its own, with one in it that is called as sessions are; that one's pid."""
    child = subprocess.Popen(["bash", "-c", WITH_SESSION], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stdout is not None
    yield child, int(child.stdout.readline())
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()


def test_sessions_that_outlive_their_parent_are_ended_with_it(
    tmp_path: Path, with_session: tuple[subprocess.Popen[str], int]
) -> None:
    child, session = with_session
    made = executor_of(child, tmp_path / "lease-1")
    child.kill()
    wait_until(lambda: not made.is_alive())
    assert start_time(session) != 0
    made.end()
    assert start_time(session) == 0
    assert not (tmp_path / "lease-1").exists()


def test_one_that_dies_while_it_is_looked_at_has_been_waited_for(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "600"], text=True, start_new_session=True)
    made = executor_of(child, tmp_path / "lease-1")
    real = made.process

    class Dying(Process):
        """Dies between two looks."""

        def is_alive(self) -> bool:
            child.send_signal(signal.SIGKILL)
            wait_until(lambda: not real.is_alive())
            return False

    made.process = Dying(real.pid, real.start_time)
    assert not made.is_alive()
    assert not Path(f"/proc/{child.pid}").exists(), "it is still to be waited for"


def test_an_executor_of_an_earlier_version_is_ended_and_it_is_said_why(tmp_path: Path) -> None:
    directory = tmp_path / "executors" / "slot-1-1"
    directory.mkdir(parents=True)
    child = subprocess.Popen(["sh", "-c", "sleep 600; exit 0", "--slice", str(directory)])
    lease = {
        "lease": "slot-1-1",
        "holder": "pod:u",
        "peer": "",
        "request": "1",
        "key": "",
        "part": 0,
        "parts": 1,
        "cards": [],
    }
    earlier = {
        "record": lease,
        "minors": {},
        "pid": child.pid,
        "start_time": start_time(child.pid),
        "boot_id": boot_id(),
    }
    (directory / "lease.json").write_text(json.dumps(earlier))
    with capture_logs() as logs:
        assert find(directory.parent, Owner, Confinement()) == []
    (said,) = logs
    assert said["directory"] == str(directory)
    assert "started by an earlier version" in said["reason"]
    assert child.wait(DEADLINE_SECONDS) == -signal.SIGKILL
    assert not directory.exists()


def test_who_ends_an_executor_together_with_others_waits_for_the_same_end(tmp_path: Path) -> None:
    """And none of them ends the one that was started next under its name."""
    supervisor = ExecutorSupervisor(tmp_path, Owner, parent=ThisProcess(None, Confinement()))
    first, second = (
        executor_of(subprocess.Popen(["sleep", "600"], text=True, start_new_session=True), tmp_path / folder / "one")
        for folder in ("first", "second")
    )

    async def end() -> None:
        supervisor.running["one"] = first
        await asyncio.gather(supervisor.end(first), supervisor.end(first))
        assert not first.is_alive()
        assert supervisor.running == {}
        supervisor.running["one"] = second
        await supervisor.end(first)
        assert second.is_alive()
        await supervisor.end(second)
        assert not second.is_alive()

    asyncio.run(end())
