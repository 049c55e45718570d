"""Runs `egpu` commands, and simulated kubelets, as forks of a process that has imported them.

Imports take most of the processor time of a command, and tests run hundreds. A fork is a process with its own
arguments, directory, environment, output and exit code. It does not show whether the program starts: the tests in
`tests/unit/cli`, on terminals, of selftest and demo, and all of commands that go on running start Python anew.
"""

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]
KUBELET: Final = "egpu_sim.cluster.kubelet"
MODULES: Final = ("support.command_imports", "egpu.adapters.pool.client", "egpu.apps.agent", KUBELET)
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
        if not self.end.done():
            os.kill(self.pid, number)

    async def wait(self) -> int:
        return await asyncio.wrap_future(self.end)


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
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        fork = _server().start(("support.forked_command", str(cwd or Path.cwd()), str(err), *arguments), env, out)
        try:
            code = fork.end.result(timeout)
        except TimeoutError:
            fork.send_signal(signal.SIGKILL)
            fork.end.result()
            raise subprocess.TimeoutExpired(command, timeout, out.read_text(), err.read_text()) from None
        done = subprocess.CompletedProcess(command, code, out.read_text(), err.read_text())
    if check:
        done.check_returncode()
    return done


async def start(module: str, arguments: Sequence[str], log_file: Path) -> "Fork | asyncio.subprocess.Process":
    """Run the module as `python -m` does, with our environment, and its output at the end of `log_file`."""
    if _forks(os.environ):
        return await asyncio.to_thread(_server().start, (module, *arguments), os.environ, log_file)
    with log_file.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments, stdout=output, stderr=output
        )


def _forks(env: Mapping[str, str]) -> bool:
    return all(value == ENVIRONMENT.get(name) for name, value in env.items() if name.startswith(OF_A_START))


@functools.cache
def _server() -> "_Server":
    return _Server()


class _Server:
    """The client of a fork server, `egpu_sim.cluster.fork_server`. That one ends with this process."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(TESTS), *filter(None, [ENVIRONMENT.get("PYTHONPATH")])])
        self._server = subprocess.Popen(
            [sys.executable, "-m", "egpu_sim.cluster.fork_server", *MODULES],
            env={**ENVIRONMENT, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        self._asking = threading.Lock()
        self._asked: deque[Future[Fork]] = deque()
        threading.Thread(target=self._read, name="fork-server", daemon=True).start()

    def start(self, argv: Sequence[str], env: Mapping[str, str], log_file: Path) -> Fork:
        """Run the module `argv[0]`."""
        module, *arguments = argv
        asked = {"name": "egpu", "module": module, "arguments": arguments, "env": dict(env), "log_file": str(log_file)}
        answer: Future[Fork] = Future()
        assert self._server.stdin is not None
        with self._asking:
            self._asked.append(answer)
            self._server.stdin.write(json.dumps(asked).encode() + b"\n")
            self._server.stdin.flush()
        return answer.result()

    def _read(self) -> None:
        assert self._server.stdout is not None
        running: dict[int, Fork] = {}
        for line in self._server.stdout:
            told = json.loads(line)
            if "code" in told:
                running.pop(told["pid"]).end.set_result(told["code"])
            else:
                fork = running[told["pid"]] = Fork(told["pid"])
                self._asked.popleft().set_result(fork)
        for waiting in (*(fork.end for fork in running.values()), *self._asked):
            waiting.set_exception(ChildProcessError("the fork server ended"))
