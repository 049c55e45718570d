"""Programs that `egpu selftest` starts as users do: bare, in a slice, and on a lease of a pool of its own. It ends all
of them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from egpu.adapters.cards.nvml import CardReading
from egpu.adapters.executors.leftovers import processes_of
from egpu.adapters.local.run import LocalMachine
from egpu.adapters.pool.security import create_secret

EGPU: Final = (sys.executable, "-m", "egpu")
MEMORY_MIB: Final = 1024
"""Memory of every tested slice."""
PROGRAM_SECONDS: Final = 180.0
READY_SECONDS: Final = 90.0
"""Both fit a machine with ten busy processes per CPU, where `egpu run` alone took half a minute."""
END_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05


class TrialFailed(Exception):
    """A failed test program; the text is its error."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The card and directory of a test. `environment`: of programs outside a slice. `slices`: options of `egpu run` to
    choose the card. `directory`: removed at the end."""

    machine: LocalMachine
    card: CardReading
    directory: Path
    environment: Mapping[str, str]
    slices: Sequence[str]
    egpu: Sequence[str] = EGPU

    def bare(self, *command: str) -> dict[str, Any]:
        """Run a program outside a slice and return its last line. Raises TrialFailed."""
        return said(command, self.environment)

    def sliced(self, *command: str, core: int) -> dict[str, Any]:
        """Run a program in a slice and return its last line. Raises TrialFailed."""
        return self._run(*self.slices, "--core", str(core), command=command)

    def leased(self, pool: Sequence[str], *command: str) -> dict[str, Any]:
        """Run a program on a lease of the pool and return its last line. Raises TrialFailed."""
        return self._run(*pool, "--core", "50", command=command)

    def _run(self, *options: str, command: Sequence[str]) -> dict[str, Any]:
        return said((*self.egpu, "run", *options, "--memory", str(MEMORY_MIB), "--", *command), os.environ)

    @contextmanager
    def pool(self) -> Generator[Sequence[str]]:
        """Start a broker and a server on loopback, and yield the options of `egpu run` for this pool.

        Raises TrialFailed if they do not start.
        """
        secret_file, state = self.directory / "pool.secret", self.directory / "serve"
        create_secret(secret_file)
        secret, simulated = ("--secret-file", str(secret_file)), self.machine.simulated
        driver = () if simulated is None else ("--driver-dir", str(simulated.driver_dir))
        with ExitStack() as stack:
            stack.callback(_end_executors, state)
            command = (*self.egpu, "broker", *secret, "--listen", "127.0.0.1:0")
            where = stack.enter_context(_daemon(command, self.directory / "broker.log", "broker starts"))["listen"]
            command = (*self.egpu, "serve", *secret, "--broker", where, "--state-dir", str(state), *driver)
            stack.enter_context(_daemon(command, self.directory / "serve.log", "connected to the broker"))
            yield ("--pool", where, *secret)


def said(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a program and return its last line. Raises TrialFailed for a failure or a timeout."""
    with _ending(subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )) as process:  # fmt: skip
        try:
            out, errors = process.communicate(timeout=PROGRAM_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise TrialFailed(f"{_called(command)} did not end within {PROGRAM_SECONDS:g} s") from error
    answer = _json(out.strip().rpartition("\n")[2])
    if process.returncode == 0 and answer:
        return answer
    why = answer.get("error") or errors.strip().rpartition("\n")[2] or f"it ended with {process.returncode}"
    raise TrialFailed(f"{answer.get('sample') or _called(command)}: {why}")


def _called(command: Sequence[str]) -> str:
    """Return the name of the program in a slice, not `egpu run`."""
    inner = command[list(command).index("--") + 1 :] if "--" in command else command
    return "a program" if inner[0] == sys.executable else Path(inner[0]).name


def _json(line: str) -> dict[str, Any]:
    """Parse a line as a JSON object; return an empty one for other lines."""
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


@contextmanager
def _daemon(command: Sequence[str], log: Path, event: str) -> Generator[dict[str, Any]]:
    """Run a daemon during the block and yield the line of its log with `event`. Raises TrialFailed."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    deadline = time.monotonic() + READY_SECONDS
    with _ending(process):
        while True:
            lines = [_json(line) for line in log.read_text(errors="replace").splitlines()]
            told = next((line for line in lines if line.get("event") == event), None)
            if told is not None:
                break
            if process.poll() is not None or time.monotonic() > deadline:
                last = log.read_text(errors="replace").strip().rpartition("\n")[2]
                raise TrialFailed(f"egpu {command[len(EGPU)]} does not start: {last}")
            time.sleep(_POLL_SECONDS)
        yield told


@contextmanager
def _ending(process: subprocess.Popen[Any]) -> Generator[subprocess.Popen[Any]]:
    """End the process with the block. SIGTERM comes first, so that it can end its own children."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _end_executors(state: Path) -> None:
    """End the executors. They outlive their server for its successor, but a test has no successor."""
    for directory in state.glob("leases/*"):
        for pid in processes_of(directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
