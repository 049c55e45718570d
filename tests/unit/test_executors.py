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

from egpu.adapters.executors import record as records
from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.leftovers import left_of, processes_of
from egpu.adapters.executors.parents import ThisProcess
from egpu.adapters.executors.process import Executor, boot_id, find
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.adapters.slices.pages import create_usage, write_policy
from egpu.api.allocation import CardShare
from egpu_base.system.processes import Process, start_time
from support.waiting import DEADLINE_SECONDS, wait_until


class Owner(msgspec.Struct, frozen=True):
    """Nobody in particular."""


WITH_SESSION = """
(exec -a egpu-session sleep 600) &
echo $!
exec sleep 600
"""


USER = 1_999_999_000
"""Nobody, and no number that executors are given."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes as somebody else")


def executor_of(child: subprocess.Popen[str], directory: Path, uid: int = 0) -> Executor[Owner]:
    directory.mkdir(parents=True)
    process = Process.of(child.pid)
    record = ExecutorRecord(
        name=directory.name, owner=Owner(), cards=(), minors={}, uid=uid,
        pid=process.pid, start_time=process.start_time, boot_id=boot_id(),
    )  # fmt: skip
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


@pytest.fixture
def dead_with_session(tmp_path: Path) -> Iterator[tuple[Executor[Owner], int]]:
    """An executor that was killed, and what it left: one that calls itself something else. Its pid."""
    child = subprocess.Popen(
        ["bash", "-c", WITH_SESSION.replace("egpu-session", "nobody")],
        stdout=subprocess.PIPE, text=True, start_new_session=True, user=USER,
    )  # fmt: skip
    assert child.stdout is not None
    session = int(child.stdout.readline())
    made = executor_of(child, tmp_path / "leases" / "lease-1", USER)
    child.kill()
    wait_until(lambda: not made.is_alive())
    yield made, session
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
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


@pytest.fixture
def neighbour() -> Iterator[subprocess.Popen[bytes]]:
    """An executor of another daemon of this machine: it was given a user that ours had before."""
    started = subprocess.Popen(["sleep", "600"], user=USER, start_new_session=True)
    yield started
    started.kill()
    started.wait()


@needs_root
def test_who_is_given_the_user_of_an_executor_that_is_ending_lives_on(
    tmp_path: Path, neighbour: subprocess.Popen[bytes], dead_with_session: tuple[Executor[Owner], int]
) -> None:
    made, session = dead_with_session
    made.end()
    assert start_time(session) == 0
    assert neighbour.poll() is None


@needs_root
def test_who_is_given_the_user_of_an_executor_that_ended_without_its_daemon_lives_on(
    tmp_path: Path, neighbour: subprocess.Popen[bytes], dead_with_session: tuple[Executor[Owner], int]
) -> None:
    made, session = dead_with_session
    records.write(made.directory, made.record)
    assert find(made.directory.parent, Owner, Confinement()) == []
    wait_until(lambda: start_time(session) == 0)
    assert neighbour.poll() is None


@needs_root
def test_the_next_holder_of_a_pid_and_its_user_is_not_what_an_executor_has_left(
    tmp_path: Path, neighbour: subprocess.Popen[bytes]
) -> None:
    """A number names a process only until it is given again."""
    now = Process.of(neighbour.pid)
    assert left_of(Process(now.pid, now.start_time - 1), USER) == []
    assert left_of(now, USER + 1) == []
    assert left_of(now, USER) == [now.pid]


def test_a_count_is_believed_up_to_what_the_limit_was_before_it_was_lowered(tmp_path: Path) -> None:
    """Also by a daemon that starts again, and whatever is written into the usage file."""

    def limit(mib: int) -> tuple[CardShare, ...]:
        return (CardShare(uuid="GPU-1", index=0, minor=0, core=50, memory_mib=mib),)

    def counts(mib: int) -> None:
        with (tmp_path / "usage").open("r+b") as usage:
            usage.seek(64)
            usage.write((mib << 20).to_bytes(8, "little"))

    record = ExecutorRecord(name="lease-1", owner=Owner(), cards=limit(1000), minors={"GPU-1": 0})
    write_policy(tmp_path / "policy", record.policy())
    create_usage(tmp_path / "usage")
    made = Executor(tmp_path, record, Confinement())
    counts(60_000)
    assert made.allowed_mib(made.usage()) == (1000,)
    counts(900)
    made.resize(limit(400), Owner())
    again = Executor(tmp_path, records.read(tmp_path, Owner), Confinement())
    for executor in (made, again):
        assert executor.allowed_mib(executor.usage()) == (900,)
        assert executor.watched("key").granted_bytes == {"GPU-1": 1000 << 20}
    counts(60_000)
    again.resize(limit(300), Owner())
    assert again.allowed_mib(again.usage()) == (1000,)
    counts(200)
    again.resize(limit(250), Owner())
    counts(60_000)
    assert again.allowed_mib(again.usage()) == (300,)


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
    # It waits by itself: a command that it waited for would be left when it is killed.
    child = subprocess.Popen(["sh", "-c", "read end", "--slice", str(directory)], stdin=subprocess.PIPE)
    # A process that has just become another program has no command line for a moment.
    wait_until(lambda: processes_of(directory) == [child.pid])
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
    assert "an earlier version started it" in said["reason"]
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
