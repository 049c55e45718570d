"""The end of an executor: nothing of it runs any more, and nobody is left to be waited for."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.supervisor import Executor
from egpu.adapters.processes import Process, start_time
from egpu.core.leasing.leases import LeaseRecord
from support.waiting import wait_until

RECORD = LeaseRecord(lease="lease-1", holder="h", peer="p", request="1", key="k", part=0, parts=1, cards=())
WITH_SESSION = """
(exec -a egpu-session sleep 600) &
echo $!
exec sleep 600
"""


def executor_of(child: subprocess.Popen[str], directory: Path) -> Executor:
    directory.mkdir()
    made = Executor(directory, RECORD, {}, Process.of(child.pid), Confinement())
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
