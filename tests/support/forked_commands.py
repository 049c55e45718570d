"""Runs `egpu` commands, and simulated kubelets, as forks of a process that has imported them.

Imports take most of the processor time of a command, and tests run hundreds. A fork is a process with its own
arguments, directory, environment, output and exit code. It does not show whether the program starts: the tests in
`tests/unit/cli`, on terminals, of selftest and of a killed demo start Python anew.
"""

import asyncio
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, Final

import pytest

from egpu_sim.cluster import forked

TESTS: Final = Path(__file__).parents[1]
KUBELET: Final = "egpu_sim.cluster.kubelet"
MODULES: Final = ("support.command_imports", "egpu.adapters.pool.client", KUBELET)
"""What the server imports. A command imports the rest itself."""
ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
"""The server's own. A console that was made with a size would keep it."""
OF_A_START: Final = ("LD_", "PYTHON", "LC_", "LANG", "NO_COLOR")
"""Variables that count when a program starts. If one of these differs from the server's, a command does not fork."""


class Fork:
    """A running fork, with those methods of `asyncio.subprocess.Process` that tests use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.end: Future[int] = Future()
        self.end.set_running_or_notify_cancel()  # A cancelled wait does not cancel it.

    @property
    def returncode(self) -> int | None:
        return self.end.result() if self.end.done() else None

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and the server has yet to tell
            if not self.end.done():
                os.kill(self.pid, number)

    async def wait(self) -> int:
        return await asyncio.wrap_future(self.end)


class ForkedPopen:
    """A running fork, with those methods of `subprocess.Popen` that tests use. `stdout`: its output, if that is a
    pipe."""

    def __init__(self, fork: Fork, stdout: IO[Any] | None) -> None:
        self.pid = fork.pid
        self.stdout = stdout
        self._fork = fork

    @property
    def returncode(self) -> int | None:
        return self._fork.returncode

    def poll(self) -> int | None:
        return self._fork.returncode

    def wait(self, timeout: float | None = None) -> int:
        try:
            return self._fork.end.result(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0) from None

    def send_signal(self, number: int) -> None:
        self._fork.send_signal(number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Running = subprocess.Popen[Any] | ForkedPopen


def run(
    arguments: Sequence[str], *, env: Mapping[str, str], timeout: float, cwd: Path | None = None, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run `egpu ARGUMENTS` as `subprocess.run` does, with nothing as its input, and its output as text."""
    command = [sys.executable, "-m", "egpu", *arguments]
    if not _forks(env):
        return subprocess.run(
            command, env=env, cwd=cwd, timeout=timeout, check=check,
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        fork = _server().start(("egpu", *arguments), env, directory=cwd, output=(out.fileno(), err.fileno()))
        try:
            code = fork.end.result(timeout)
        except TimeoutError:
            fork.send_signal(signal.SIGKILL)
            fork.end.result()
            raise subprocess.TimeoutExpired(command, timeout, _said(out), _said(err)) from None
        done = subprocess.CompletedProcess(command, code, _said(out), _said(err))
    if check:
        done.check_returncode()
    return done


def _said(file: IO[bytes]) -> str:
    """Return the file's text."""
    file.seek(0)
    return file.read().decode()


def popen(
    arguments: Sequence[str], *, env: Mapping[str, str], stderr: IO[Any], stdout: IO[Any] | int, cwd: Path | None = None
) -> Running:
    """Start `egpu ARGUMENTS` as `subprocess.Popen` does, with nothing as its input. `stdout`: a file, or PIPE for
    text."""
    if not _forks(env):
        return subprocess.Popen(
            [sys.executable, "-m", "egpu", *arguments], env=env, cwd=cwd, text=stdout == subprocess.PIPE,
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
        )  # fmt: skip
    start = functools.partial(_server().start, ("egpu", *arguments), env, directory=cwd)
    if not isinstance(stdout, int):
        return ForkedPopen(start(output=(stdout.fileno(), stderr.fileno())), None)
    assert stdout == subprocess.PIPE
    ours, its = os.pipe()
    with os.fdopen(its, "wb"):
        return ForkedPopen(start(output=(its, stderr.fileno())), os.fdopen(ours))


async def start(module: str, arguments: Sequence[str], log_file: Path) -> "Fork | asyncio.subprocess.Process":
    """Run the module as `python -m` does, with our environment, and its output at the end of `log_file`."""
    with log_file.open("ab") as output:
        if _forks(os.environ):
            out = (output.fileno(), output.fileno())
            return await asyncio.to_thread(_server().start, (module, *arguments), os.environ, output=out)
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments, stdout=output, stderr=output
        )


@contextlib.contextmanager
def imported_once() -> Generator[None]:
    """Inside, the fork servers of clusters are forks themselves, of a process that has imported the components."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forked, "launch", _launch)
        yield


async def _launch(modules: Sequence[str], channel: socket.socket, log_file: Path) -> Fork:
    """Start a fork server as `forked.launch` does."""
    with log_file.open("ab") as output:
        command = ("egpu_sim.cluster.fork_server", *modules)
        out = (output.fileno(), output.fileno())
        return await asyncio.to_thread(_server().start, command, os.environ, source=channel.fileno(), output=out)


def _forks(env: Mapping[str, str]) -> bool:
    return all(value == ENVIRONMENT.get(name) for name, value in env.items() if name.startswith(OF_A_START))


@functools.cache
def _server() -> "_Server":
    return _Server()


class _Server:
    """The client of a fork server, `egpu_sim.cluster.fork_server`. That one ends with this process."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(TESTS), *filter(None, [ENVIRONMENT.get("PYTHONPATH")])])
        self._channel, its = socket.socketpair()
        with its:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "egpu_sim.cluster.fork_server", *MODULES],
                env={**ENVIRONMENT, "PYTHONPATH": path}, stdin=its.fileno(), start_new_session=True,
            )  # fmt: skip
        self._nothing = os.open(os.devnull, os.O_RDONLY)
        self._asking = threading.Lock()
        self._asked: deque[Future[Fork]] = deque()
        threading.Thread(target=self._read, name="fork-server", daemon=True).start()

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], *,
        output: tuple[int, int], source: int | None = None, directory: Path | None = None,
    ) -> Fork:  # fmt: skip
        """Run the module `argv[0]`. `output`: standard output and error. `source`: standard input, nothing by
        default."""
        module, *arguments = argv
        where = str(directory or Path.cwd())
        asked = {"name": "egpu", "module": module, "arguments": arguments, "env": dict(env), "directory": where}
        line = memoryview(json.dumps(asked).encode() + b"\n")
        answer: Future[Fork] = Future()
        with self._asking:
            self._asked.append(answer)
            sent = socket.send_fds(self._channel, [line], [self._nothing if source is None else source, *output])
            self._channel.sendall(line[sent:])
        return answer.result()

    def _read(self) -> None:
        running: dict[int, Fork] = {}
        with self._channel.makefile("rb") as lines:
            for line in lines:
                told = json.loads(line)
                if "code" in told:
                    running.pop(told["pid"]).end.set_result(told["code"])
                else:
                    fork = running[told["pid"]] = Fork(told["pid"])
                    self._asked.popleft().set_result(fork)
        for waiting in (*(fork.end for fork in running.values()), *self._asked):
            waiting.set_exception(ChildProcessError("the fork server ended"))
