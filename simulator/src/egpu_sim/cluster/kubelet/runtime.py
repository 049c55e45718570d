"""The container runtime: a container is a process of this machine with its own view of a few paths.

`egpu-enter --supervise` keeps a directory for every run: `pid` while it runs (and after), `exit` once all its processes
have ended. The supervisor outlives the kubelet. A new kubelet reads the directories and finds every container. Nothing
is stored elsewhere, so no container starts twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from egpu_base.errors import TerminalError, Unavailable
from egpu_base.system import proc
from egpu_base.system.files import write_atomically
from egpu_base.system.processes import start_time
from egpu_sim import native

log = structlog.get_logger(__name__)

# Time limit for a supervisor from its start to its pid file, and from a container's end to its exit file.
SUPERVISOR_SECONDS = 5.0
START_SECONDS = 20.0
MOST_SAID = 4096
POLL_SECONDS = 0.02
_KILLED = 128 + signal.SIGKILL
_NOT_STARTED = 128
"""The exit code of a run that could not start, as containerd and kubelet report it."""


@dataclass(frozen=True)
class Bind:
    """`source` of this machine, mounted at `target` in the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class RunSpec:
    """One run. Every program in the container gets the libraries of `preload`, whatever its environment says. `input`:
    it reads attached callers' input; `terminal`: also on a terminal of its own."""

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
    """The end of a run. `code` is 128 + signal where a signal ended it."""

    code: int
    signal: int
    finished_at: float


@dataclass(frozen=True)
class Running:
    pid: int
    supervisor: int
    started_at: float


class NeverStarted(Exception):
    """The kubelet was killed between making the run's directory and starting the command, which may start now."""


class Runtime:
    """Starts, watches and ends runs by their directories. `private_mounts` says whether binds are possible here."""

    def __init__(self, *, private_mounts: bool) -> None:
        self.private_mounts = private_mounts

    @classmethod
    async def probe(cls) -> tuple[Runtime, str]:
        """Return a runtime, and one line on what this machine allows. Raises NativeMissing."""
        process = await asyncio.create_subprocess_exec(
            str(native.path("egpu-enter")), "--probe", stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        return cls(private_mounts=process.returncode == 0), output.decode(errors="replace").strip()

    async def start(self, directory: Path, spec: RunSpec) -> None:
        """Return when the container runs, or has run. Raises TerminalError when it cannot be started, and Unavailable
        when it may still start."""
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
        """Wait until all processes of the run in `directory` have ended. Raises NeverStarted."""
        running = await self._started(directory)
        if running is None:
            # A command begins only once its pid file is there (egpu-enter ensures that).
            if _ended(directory) is None and not (directory / "pid").exists():
                raise NeverStarted(str(directory))
            return _ended(directory) or self._declare_lost(directory)
        await _gone(running.supervisor)
        return _ended(directory) or self._declare_lost(directory)

    async def _started(self, directory: Path) -> Running | None:
        """Return the run's pid; None when it has ended, or never started because the kubelet was killed first."""
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
        """Send SIGTERM, and SIGKILL after the grace period. Return when it has ended."""
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
    """Return its exit status, and on failure a line of its stderr. asyncio's own processes have transports and
    protocols for output, which cost as much as the start."""
    process, said = _spawned(command, env)
    try:
        await _gone(process.pid)
        status, errors = process.wait(), b""
        if status != 0:
            with contextlib.suppress(BlockingIOError):  # a process of it is left, and wrote nothing
                errors = os.read(said, MOST_SAID)
        return status, errors
    finally:
        os.close(said)


def _spawned(command: Sequence[str], env: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """Return the process, and the end of a pipe from its stderr."""
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
    """Return the present run in `directory`, if any."""
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
    return _ended(directory)


def has_begun(directory: Path) -> bool:
    """Return whether the run's command was started, or never will be."""
    return (directory / "pid").exists() or _ended(directory) is not None


def write_start_error(directory: Path, message: str) -> None:
    """Record that the run in `directory` could not start, as its end."""
    write_atomically(directory / "error", message.encode())
    write_atomically(directory / "exit", f"{_NOT_STARTED} 0 {time.time_ns()}\n".encode())


def start_error(directory: Path) -> str:
    """Return the reason why a run could not start, or ""."""
    try:
        return (directory / "error").read_text()
    except OSError:
        return ""


def began_at(directory: Path) -> float:
    """Return the start of the run: its pid file's time, or the directory's without one."""
    for path in (directory / "pid", directory):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def _being_started(directory: Path) -> bool:
    """Return whether an egpu-enter for this run is starting, however slowly: its command may still begin."""
    wanted = str(directory).encode()
    return any(wanted in proc.command(pid) for pid in proc.pids())


def _prepare(directory: Path, log_file: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log_file.touch()
    link = directory / "log"
    link.unlink(missing_ok=True)
    link.symlink_to(log_file)


def _ended(directory: Path) -> Exit | None:
    try:
        with open(f"{directory}/exit") as file:  # asked repeatedly while it is not there
            code, number, nanoseconds = (int(word) for word in file.read().split())
    except (OSError, ValueError):
        return None
    return Exit(code, number, nanoseconds / 1e9)


def _send(running: Running, number: signal.Signals) -> None:
    """Send a signal: SIGTERM goes through the supervisor to the group; SIGKILL to the group itself, which the
    supervisor reports."""
    with contextlib.suppress(ProcessLookupError):
        if number is signal.SIGKILL:
            os.killpg(running.pid, number)
        else:
            os.kill(running.supervisor, number)


async def _gone(pid: int) -> None:
    """Wait until process `pid` (not a child of this process) has ended."""
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
