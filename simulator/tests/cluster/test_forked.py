"""Processes that are forks of one with all modules imported."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from egpu_base.errors import Unavailable
from egpu_base.system import proc
from egpu_sim.cluster.forked import ForkedProcess, ForkServer, fork_server
from support.waiting import until

PROGRAM = """
import os, signal, sys, time
import imported
if __name__ == "__main__":
    print(*sys.argv[1:], os.environ.get("GIVEN"), "INHERITED" in os.environ, os.getsid(0) == os.getpid(), flush=True)
    print(imported.pid == os.getppid(), sys.stdin.read() == "", file=sys.stderr, flush=True)
    if sys.argv[1] == "sleep":
        time.sleep(600)
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
async def forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[ForkServer]:
    (tmp_path / "imported.py").write_text("import os\npid = os.getpid()\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("INHERITED", "yes")
    async with fork_server(["imported"], tmp_path / "fork-server.log") as server:
        yield server


async def start(forks: ForkServer, tmp_path: Path, *arguments: str, name: str = "one") -> ForkedProcess:
    given = {"GIVEN": name}
    return await forks.spawn(name, ("program", *arguments), env=given, log_file=tmp_path / f"{name}.log")


async def test_a_module_runs_with_its_arguments_environment_and_log(forks: ForkServer, tmp_path: Path) -> None:
    process = await start(forks, tmp_path, "3", "word")
    assert await process.wait() == 3
    assert process.returncode == 3
    assert (tmp_path / "one.log").read_text() == "3 word one False True\nTrue True\n"
    with pytest.raises(ProcessLookupError):
        process.send_signal(signal.SIGTERM)


ENDINGS = """
import atexit, sys, threading, time
if __name__ == "__main__":
    atexit.register(print, "registered")
    threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
    ways = {"falls": lambda: None, "says": lambda: sys.exit("why"), "raises": lambda: 1 / 0, "none": sys.exit}
    ways[sys.argv[1]]()
"""


@pytest.mark.parametrize(
    ("way", "code", "said"), [("falls", 0, ""), ("none", 0, ""), ("says", 1, "why"), ("raises", 1, "ZeroDivisionError")]
)
async def test_a_module_ends_as_python_ends_it(
    forks: ForkServer, tmp_path: Path, way: str, code: int, said: str
) -> None:
    """Its threads end before it, and what it registered for its end runs."""
    (tmp_path / "endings.py").write_text(ENDINGS)
    log_file = tmp_path / "endings.log"
    process = await forks.spawn("one", ("endings", way), env={}, log_file=log_file)
    assert await process.wait() == code
    lines = log_file.read_text().splitlines()
    assert [line for line in lines if line in ("thread", "registered")] == ["thread", "registered"]
    assert said in log_file.read_text()


async def test_processes_started_at_once_have_their_own_ends_and_names(forks: ForkServer, tmp_path: Path) -> None:
    names = [f"number-{number}" for number in range(8)]
    sleeping = await start(forks, tmp_path, "sleep", name="sleeping")
    running = await asyncio.gather(*(start(forks, tmp_path, str(at), name=name) for at, name in enumerate(names)))
    assert [await process.wait() for process in running] == list(range(8))
    assert proc.read(sleeping.pid, "comm") == b"sleeping\n"
    sleeping.send_signal(signal.SIGKILL)
    assert await sleeping.wait() == -signal.SIGKILL


async def test_a_killed_server_takes_its_processes_with_it_and_another_follows(
    forks: ForkServer, tmp_path: Path
) -> None:
    before = await start(forks, tmp_path, "sleep")
    assert forks.pid is not None
    os.kill(forks.pid, signal.SIGKILL)
    assert await before.wait() == -signal.SIGKILL
    await until(lambda: not Path(f"/proc/{before.pid}").exists())
    after = await start(forks, tmp_path, "4", name="after")
    assert await after.wait() == 4


async def test_a_module_that_cannot_be_imported_is_told(tmp_path: Path) -> None:
    async with fork_server(["no_such_module"], tmp_path / "fork-server.log") as server:
        with pytest.raises(Unavailable, match=r"fork-server\.log"):
            await server.spawn("one", ["program"], env={}, log_file=tmp_path / "one.log")
    assert "no_such_module" in (tmp_path / "fork-server.log").read_text()


async def test_a_cancelled_start_leaves_no_process(tmp_path: Path, forks: ForkServer) -> None:
    log_file = tmp_path / "one.log"
    starting = asyncio.create_task(start(forks, tmp_path, "sleep"))
    await asyncio.sleep(0)  # it has asked
    starting.cancel()
    await asyncio.wait([starting])
    await forks.stop()
    assert starting.cancelled()
    left = [pid for pid in proc.pids() if str(log_file.parent).encode() in proc.read(pid, "environ")]
    assert left == []
