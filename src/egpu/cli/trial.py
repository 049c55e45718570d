"""Programs that `egpu selftest` starts, as anybody would: outside a slice, in one, and on a lease of a pool that it
starts for itself. Whatever is left of them goes with what started them."""

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

from egpu.adapters.executors.leftovers import processes_of
from egpu.adapters.local.run import LocalMachine
from egpu.adapters.nvml import CardReading
from egpu.adapters.pool.security import create_secret

EGPU: Final = (sys.executable, "-m", "egpu")
MEMORY_MIB: Final = 1024
"""Of every slice that is tried."""
PROGRAM_SECONDS: Final = 180.0
READY_SECONDS: Final = 90.0
"""Both are for a machine on which ten others want each processor: there, `egpu run` alone took half a minute."""
END_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05


class TrialFailed(Exception):
    """What was tried did not work; the text is what it said."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Where things are tried. `environment` is that of programs outside a slice; `slices` says to `egpu run` which card
    is meant; `directory` goes at the end, with all that is in it."""

    machine: LocalMachine
    card: CardReading
    directory: Path
    environment: Mapping[str, str]
    slices: Sequence[str]
    egpu: Sequence[str] = EGPU

    def bare(self, *command: str) -> dict[str, Any]:
        """What a program says on its last line, outside a slice. Raises TrialFailed."""
        return said(command, self.environment)

    def sliced(self, *command: str, core: int) -> dict[str, Any]:
        """The same in a slice. Raises TrialFailed."""
        return self._run(*self.slices, "--core", str(core), command=command)

    def leased(self, pool: Sequence[str], *command: str) -> dict[str, Any]:
        """The same on a lease of the pool that `pool` gave. Raises TrialFailed."""
        return self._run(*pool, "--core", "50", command=command)

    def _run(self, *options: str, command: Sequence[str]) -> dict[str, Any]:
        return said((*self.egpu, "run", *options, "--memory", str(MEMORY_MIB), "--", *command), os.environ)

    @contextmanager
    def pool(self) -> Generator[Sequence[str]]:
        """A broker and a server on loopback; what a program says to reach them.

        Raises TrialFailed: they do not start.
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
    """What a program says on its last line. Raises TrialFailed: it did not end well, or in time."""
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
    """What people know a command by: the program in a slice, rather than `egpu run`."""
    inner = command[list(command).index("--") + 1 :] if "--" in command else command
    return "a program" if inner[0] == sys.executable else Path(inner[0]).name


def _json(line: str) -> dict[str, Any]:
    """An object that is a whole line; of anything else, an empty one."""
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


@contextmanager
def _daemon(command: Sequence[str], log: Path, event: str) -> Generator[dict[str, Any]]:
    """A process of ours while the block runs, from the line of its log on that tells of `event`. Raises TrialFailed."""
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
    """A process that is ended with the block, however that is left: asked first, because it may have others to end."""
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
    """They outlive their server, for the next one to find them: here is no next one."""
    for directory in state.glob("leases/*"):
        for pid in processes_of(directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
