"""The container runtime: a container is a process of this machine with its own view of a few paths.

Every run has a directory, kept by `egpu-enter --supervise`, whose supervisor outlives us: `pid` while it runs (and
after), `exit` once nothing of it is left. Whoever starts anew reads the directories and finds every container where
it is; nothing is kept anywhere else, so nothing can be started twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from egpu.adapters import native
from egpu.adapters.files import write_atomically
from egpu.adapters.processes import start_time
from egpu.errors import TerminalError, Unavailable

log = structlog.get_logger(__name__)

#: How long a supervisor may take from its start to its pid file, and from a container's end to its exit file.
SUPERVISOR_SECONDS = 5.0
START_SECONDS = 20.0
MOST_SAID = 4096
POLL_SECONDS = 0.02
_KILLED = 128 + signal.SIGKILL


@dataclass(frozen=True)
class Bind:
    """`source` of this machine seen at `target` in the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class RunSpec:
    """One run. `preload` are libraries that every program in the container gets, whatever its environment says.
    `input`: it reads what attached callers type; `terminal`: also on a terminal of its own."""

    argv: Sequence[str]
    env: dict[str, str]
    working_dir: str = "/"
    binds: tuple[Bind, ...] = ()
    preload: tuple[str, ...] = ()
    log: Path = field(default=Path("/dev/null"))
    input: bool = False
    terminal: bool = False


@dataclass(frozen=True)
class Exit:
    """How a run ended. `code` is 128 + signal where a signal ended it."""

    code: int
    signal: int
    finished_at: float


@dataclass(frozen=True)
class Running:
    pid: int
    supervisor: int
    started_at: float


class NeverStarted(Exception):
    """The kubelet was killed after it made the run's directory and before the command began: it may begin now."""


class Runtime:
    """Starts, watches and ends runs by their directories. `private_mounts` says whether binds are possible here."""

    def __init__(self, *, private_mounts: bool) -> None:
        self.private_mounts = private_mounts

    @classmethod
    async def probe(cls) -> tuple[Runtime, str]:
        """A runtime, and one line on what this machine allows. Raises NativeMissing."""
        process = await asyncio.create_subprocess_exec(
            str(native.path("egpu-enter")), "--probe", stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        return cls(private_mounts=process.returncode == 0), output.decode(errors="replace").strip()

    async def start(self, directory: Path, spec: RunSpec) -> None:
        """Returns when the container runs, or has run. Raises TerminalError when it cannot be started."""
        _prepare(directory, spec.log)
        command = [str(native.path("egpu-enter"))]
        if self.private_mounts:
            for bind in spec.binds:
                command += ["--ro-bind" if bind.read_only else "--bind", bind.source, bind.target]
            for library in spec.preload:
                command += ["--preload", library]
        command += ["--input"] if spec.input else []
        command += ["--terminal"] if spec.terminal else []
        command += ["--chdir", spec.working_dir or "/", "--supervise", str(directory), "--", *spec.argv]
        try:
            async with asyncio.timeout(START_SECONDS):
                status, errors = await _run(command, spec.env)
        except TimeoutError as error:
            raise Unavailable(f"egpu-enter did not answer within {START_SECONDS:g} s") from error
        except (OSError, ValueError) as error:
            raise TerminalError(f"cannot run egpu-enter: {error}") from error
        if status != 0:
            raise TerminalError(errors.decode(errors="replace").strip() or f"egpu-enter ended with {status}")

    async def wait(self, directory: Path) -> Exit:
        """Until the run in `directory` has ended and nothing of it is left. Raises NeverStarted."""
        running = await self._started(directory)
        if running is None:
            # A command begins only once its pid file is there (egpu-enter sees to that).
            if _ended(directory) is None and not (directory / "pid").exists():
                raise NeverStarted(str(directory))
            return _ended(directory) or self._declare_lost(directory)
        await _gone(running.supervisor)
        return _ended(directory) or self._declare_lost(directory)

    async def _started(self, directory: Path) -> Running | None:
        """None when it has ended, or was never started because the kubelet was killed first."""
        deadline = asyncio.get_running_loop().time() + SUPERVISOR_SECONDS
        while True:
            if _ended(directory) is not None:
                return None
            found = look(directory)
            if found is not None:
                return found
            if (directory / "pid").exists():
                return None
            if asyncio.get_running_loop().time() > deadline and not await asyncio.to_thread(_being_started, directory):
                return None
            await asyncio.sleep(POLL_SECONDS)

    def _declare_lost(self, directory: Path) -> Exit:
        """Write the exit file for a supervisor that was killed: its container has died with it."""
        lost = Exit(_KILLED, signal.SIGKILL, directory.stat().st_mtime)
        write_atomically(directory / "exit", f"{lost.code} {lost.signal} {int(lost.finished_at * 1e9)}\n".encode())
        return lost

    async def stop(self, directory: Path, *, grace_seconds: float) -> Exit:
        """SIGTERM, and SIGKILL after the grace period; returns when it has ended."""
        waiting = asyncio.create_task(self.wait(directory))
        try:
            for number, limit_seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, None)):
                if limit_seconds is not None and limit_seconds <= 0:
                    continue
                running = look(directory)
                if running is not None:
                    _send(running, number)
                ended, _ = await asyncio.wait([waiting], timeout=limit_seconds)
                if ended:
                    break
            return await waiting
        except NeverStarted:
            return self._declare_lost(directory)
        finally:
            waiting.cancel()


async def _run(command: Sequence[str], env: Mapping[str, str]) -> tuple[int, bytes]:
    """Its exit status, and if it failed what it wrote to stderr: a line. asyncio's own processes have transports and
    protocols for what they say meanwhile, which costs as much as the start."""
    process, said = _spawned(command, env)
    try:
        await _gone(process.pid)
        status, errors = process.wait(), b""
        if status != 0:
            with contextlib.suppress(BlockingIOError):  # something of it is left, and said nothing
                errors = os.read(said, MOST_SAID)
        return status, errors
    finally:
        os.close(said)


def _spawned(command: Sequence[str], env: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and where to read what it writes to stderr."""
    said, saying = os.pipe()
    try:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=saying,
            start_new_session=True,
        )
    except BaseException:
        os.close(said)
        raise
    finally:
        os.close(saying)
    os.set_blocking(said, False)
    return process, said


def look(directory: Path) -> Running | None:
    """The run that goes on in `directory`, if one does."""
    try:
        path = directory / "pid"
        words = path.read_text().split()
        pid, _, supervisor, supervisor_started = (int(word) for word in words)
        began = path.stat().st_mtime
    except (OSError, ValueError):
        return None
    if start_time(supervisor) != supervisor_started:
        return None
    return Running(pid, supervisor, began)


def ended(directory: Path) -> Exit | None:
    """How the run in `directory` ended, if it did."""
    return _ended(directory)


def began_at(directory: Path) -> float:
    """When the run was started: its pid file's time, or the directory's where it never got one."""
    for path in (directory / "pid", directory):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def _being_started(directory: Path) -> bool:
    """Whether an egpu-enter for this run is under way, however slowly: its command may still begin."""
    wanted = str(directory).encode()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if wanted in process.read_bytes().split(b"\0"):
                return True
    return False


def _prepare(directory: Path, log_file: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log_file.touch()
    link = directory / "log"
    link.unlink(missing_ok=True)
    link.symlink_to(log_file)


def _ended(directory: Path) -> Exit | None:
    try:
        with open(f"{directory}/exit") as file:  # asked for again and again while it is not there
            code, number, nanoseconds = (int(word) for word in file.read().split())
    except (OSError, ValueError):
        return None
    return Exit(code, number, nanoseconds / 1e9)


def _send(running: Running, number: signal.Signals) -> None:
    """SIGTERM goes through the supervisor to the group; SIGKILL to the group itself, which the supervisor reports."""
    with contextlib.suppress(ProcessLookupError):
        if number is signal.SIGKILL:
            os.killpg(running.pid, number)
        else:
            os.kill(running.supervisor, number)


async def _gone(pid: int) -> None:
    """Until process `pid` (not a child of ours) has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:
        while start_time(pid):  # noqa: ASYNC110 - a kernel without pidfd has nothing to wait on
            await asyncio.sleep(POLL_SECONDS)
        return
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(descriptor, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
