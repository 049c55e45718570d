"""What looks after something while a process runs: killed in the middle, it ends the process or is started again."""

import asyncio
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import structlog.testing

from egpu.adapters.local.looking import LookingThread
from egpu.adapters.pool.bridge import Bridge, Target
from egpu.adapters.pool.lease import HeldLease
from egpu.adapters.pool.listener import Listener
from egpu.adapters.pool.security import Credentials
from egpu.core.leasing.records import LeaseRequest
from egpu_base.http import strangers
from egpu_base.http.listening import Listen
from egpu_base.runtime import restarts
from egpu_base.runtime.endless import EndlessTasks
from egpu_base.runtime.looking import looking
from egpu_base.runtime.supervisor import Supervisor, TaskEndedError
from support.in_process_pool import secret

DEADLINE_SECONDS = 10
ROOT = Path(__file__).parents[2]
MAY_END = (
    "apps/agent/limits/memory",  # ends processes
    "apps/broker/sessions",  # answers a caller
    "apps/dashboard/usage_sources",  # asks each agent once
    "apps/serve/app",  # serves one connection to the broker
    "cli/watching",  # follows what a command waits for
)


class Killed(Exception):
    """What ends a watcher in these tests."""


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    return secret(tmp_path)


def failing_once(then: Callable[[], float]) -> Callable[[], float]:
    failures = iter([Killed("look")])

    def look() -> float:
        for failure in failures:
            raise failure
        return then()

    return look


@contextmanager
def logged(event: str) -> Generator[None]:
    with structlog.testing.capture_logs() as lines:
        yield
    assert any(event in line["event"] and line["log_level"] == "error" for line in lines)


def test_the_thread_of_egpu_run_looks_again_after_a_look_that_failed() -> None:
    looked, left = threading.Event(), threading.Event()

    def then() -> float:
        looked.set()
        return 0.01

    with logged("failed"), LookingThread("memory", failing_once(then), leave=left.set):
        assert looked.wait(DEADLINE_SECONDS)
    assert left.is_set()


async def test_a_thread_of_a_daemon_that_fails_ends_its_process() -> None:
    supervisor = Supervisor(signals=())
    supervisor.add("memory", looking(failing_once(lambda: 0.01)))
    async with asyncio.timeout(DEADLINE_SECONDS):
        with pytest.raises(Killed):
            await supervisor.run()


@pytest.mark.parametrize("killed", [True, False])
async def test_a_task_beside_a_process_s_own_is_started_again(monkeypatch: pytest.MonkeyPatch, *, killed: bool) -> None:
    monkeypatch.setattr(restarts, "AGAIN_SECONDS", 0.01)
    starts, again = iter(range(3)), asyncio.Event()

    async def work() -> None:
        if next(starts) == 2:
            again.set()
            await asyncio.Event().wait()
        if killed:
            raise Killed

    with logged("started again"):
        task = asyncio.create_task(restarts.kept_running("work", work))
        await asyncio.wait_for(again.wait(), DEADLINE_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("killed", [True, False])
async def test_a_task_of_a_group_that_ends_ends_its_process(*, killed: bool) -> None:
    async def work() -> None:
        if killed:
            raise Killed

    async def lead() -> None:
        async with EndlessTasks() as group:
            group.start(for_ever())
            group.start(work())

    supervisor = Supervisor(signals=())
    supervisor.add("lead", lead())
    async with asyncio.timeout(DEADLINE_SECONDS):
        with pytest.raises(Killed if killed else TaskEndedError) as ended:
            await supervisor.run()
    assert killed or "work ended unexpectedly" in str(ended.value)


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_task_of_a_group_may_be_cancelled() -> None:
    async with asyncio.timeout(DEADLINE_SECONDS), EndlessTasks() as group:
        group.start(for_ever()).cancel()


def test_only_these_groups_have_tasks_that_may_end() -> None:
    """Any other group watches something: it is one of `EndlessTasks`."""
    found = {
        str(file.relative_to(ROOT))
        for tree in ("src", "base/src")
        for file in (ROOT / tree).rglob("*.py")
        if "TaskGroup()" in file.read_text()
    }
    assert found == {
        "base/src/egpu_base/runtime/endless.py",
        *(f"src/egpu/{one}.py" for one in MAY_END),
    }


async def test_a_listener_that_takes_nobody_any_more_ends_its_process(
    credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(*_: object) -> None:
        raise Killed

    async def come_in(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("egpu.adapters.pool.listener.accept", killed)
    listener = Listener(credentials, "127.0.0.1:0", come_in, max_connections=4)
    await listener.open()
    supervisor = Supervisor(signals=())
    supervisor.add("listener", listener.serve())
    async with asyncio.timeout(DEADLINE_SECONDS):
        with pytest.raises((Killed, TaskEndedError)):
            await supervisor.run()


async def test_a_caller_that_cannot_be_taken_ends_no_accepting() -> None:
    taken = asyncio.Event()
    failures = iter([Killed("take")])

    def take(sock: socket.socket, _: str) -> None:
        for failure in failures:
            raise failure
        sock.close()
        taken.set()

    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    accepting = asyncio.create_task(strangers.accept(listener, take))
    with logged("a caller was not taken"):
        for _ in range(2):
            with socket.create_connection(listener.getsockname()):
                await asyncio.sleep(0.05)
        await asyncio.wait_for(taken.wait(), DEADLINE_SECONDS)
    accepting.cancel()
    with suppress(asyncio.CancelledError):
        await accepting


async def test_a_bridge_without_descriptors_takes_programs_again(
    tmp_path: Path, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = asyncio.Event()

    async def take() -> Target:
        taken.set()
        raise ConnectionRefusedError

    loop = asyncio.get_running_loop()
    accept, failures = loop.sock_accept, iter([OSError(24, "Too many open files")])

    async def failing(sock: socket.socket) -> object:
        for failure in failures:
            raise failure
        return await accept(sock)

    monkeypatch.setattr(loop, "sock_accept", failing)
    bridge = Bridge(tmp_path, credentials, take)
    await bridge.open()
    try:
        with socket.socket(socket.AF_UNIX) as program:
            program.connect(str(tmp_path / "lease0.sock"))
            await asyncio.wait_for(taken.wait(), DEADLINE_SECONDS)
    finally:
        await bridge.close()


async def test_who_has_a_lease_is_told_when_nothing_renews_it(
    credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    request = LeaseRequest(cards=1, core=10, memory_mib=100)
    lease = HeldLease(Listen("127.0.0.1", 1), credentials, request, holder="me", on_ended=ended.append)

    async def killed() -> None:
        raise Killed

    monkeypatch.setattr(lease, "_connected", killed)
    with logged("not renewed"):
        await lease._keep("lease")
    assert len(ended) == 1
