"""MPS servers: `nvidia-cuda-mps-control`, which comes with NVIDIA's driver, one daemon for each card.

Sources: https://docs.nvidia.com/deploy/mps/ (commands of the control program, environment, compute modes) and the man
page nvidia-cuda-mps-control(1). A daemon starts its server with the first client, or on command. The server takes the
defaults of that moment and enforces them for each client, which can only lower its own. On a card in exclusive-process
mode, a program that bypasses the server gets no context.

Programs in containers are not trusted, so a card's directory has two faces. The daemon's own pipe directory is shown to
no container. Programs see another directory, read-only, that has the names which a client needs, and not the socket by
which the daemon takes commands.

    pipe/     the daemon's own, with the file of its pid
    clients/  shown to programs: hard links to the socket of clients and to the pipe of the log
    log/      the daemon's log
    shm/      the /dev/shm of daemon and programs, if they have one of their own

On a simulated machine the program is our own, over the simulated driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from egpu.adapters import native
from egpu.adapters.cards.package import nvml
from egpu_base.errors import NotSupported, Unavailable
from egpu_base.system import proc
from egpu_base.system.private import open_own
from egpu_base.system.processes import Process, descendants

log = structlog.get_logger(__name__)

PROGRAM: Final = "nvidia-cuda-mps-control"
PIPES: Final = "pipe"
CLIENTS: Final = "clients"
LOGS: Final = "log"
MEMORY: Final = "shm"
FOR_CLIENTS: Final = ("control", "log")
"""The names of a pipe directory that a client needs."""
TIMEOUT_SECONDS: Final = 20.0
QUIT_SECONDS: Final = 1
"""The time that a daemon waits for remaining programs when it is told to quit."""
_PID_FILE: Final = f"{PROGRAM}.pid"
_PID_BYTES: Final = 32
_PIPES_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
_SHARED_MEMORY: Final = Path("/dev") / "shm"


@dataclass(frozen=True)
class Shown:
    """The directories that programs share with their server: `pipes`, read-only, and `memory` as their /dev/shm (None:
    they keep theirs)."""

    pipes: Path
    memory: Path | None = None


def program(nvml_library: Path | None = None) -> Path | None:
    """Return the control program of this machine, or the one beside `nvml_library`; None without one."""
    found = shutil.which(PROGRAM, path=None if nvml_library is None else str(nvml_library.parent))
    return None if found is None else Path(found)


def start(directory: Path, uuid: str, nvml_library: Path | None = None) -> None:
    """Start the daemon of the card `uuid`; it outlives us. Blocks until it takes commands.

    Raises NotSupported: the program is missing, or does not start.
    """
    control = program(nvml_library)
    if control is None:
        raise NotSupported(f"MPS needs {PROGRAM}, which this node does not have: install NVIDIA's driver with it")
    for each in (PIPES, LOGS):
        (directory / each).mkdir(parents=True, exist_ok=True)
    environment = {**_environment(directory / PIPES), "CUDA_VISIBLE_DEVICES": uuid}
    if nvml_library is not None:
        environment["LD_LIBRARY_PATH"] = str(nvml_library.parent)
    command, memory = [str(control), "-d"], directory / MEMORY
    if memory.is_mount():
        command = [str(native.path("egpu-enter")), "--bind", str(memory), str(_SHARED_MEMORY), *command]
    elif memory.exists():
        raise NotSupported(
            f"{memory} is not mounted here: the volume needs mountPropagation HostToContainer in the shim"
        )
    with (directory / LOGS / "start.log").open("wb") as output:
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotSupported(f"{PROGRAM} does not start for card {uuid}: {error}") from error
    if done.returncode:
        said = (directory / LOGS / "start.log").read_text(errors="replace").strip().splitlines()
        raise NotSupported(f"{PROGRAM} does not start for card {uuid}: {said[-1] if said else done.returncode}")


class MpsControl:
    """The control daemons of one machine. `nvml_library` is a simulated machine's, None for this machine's own driver;
    `starter` (directory, UUID) starts daemons in our place, as `start` does. Calls block."""

    def __init__(self, nvml_library: Path | None = None, *, starter: Callable[[Path, str], None] | None = None) -> None:
        self._nvml_library = nvml_library
        self._starter = starter

    def present(self) -> bool:
        """Return whether the control program exists."""
        return program(self._nvml_library) is not None

    def start(self, directory: Path, uuid: str) -> None:
        """Start a daemon. Raises as `start`, and the errors of the starter."""
        if self._starter is None:
            start(directory, uuid, self._nvml_library)
        else:
            self._starter(directory, uuid)

    def find(self, directory: Path) -> Process | None:
        """Return the daemon that was started for this directory, or None. The pid file alone decides nothing."""
        try:
            with open_own(directory / PIPES / _PID_FILE) as file:
                process = Process.of(int(file.read(_PID_BYTES)))
        except (OSError, ValueError):
            return None
        named = os.path.basename(proc.command(process.pid)[0]) == PROGRAM.encode()
        place = os.fsencode(f"{_PIPES_VARIABLE}={directory / PIPES}")
        here = place in proc.read(process.pid, "environ").split(b"\0")
        return process if named and here and process.is_alive() else None

    def hold(self, directory: Path, core_percent: int, memory_mib: int) -> None:
        """Limit each client of this directory's daemon, and let clients in afterwards.

        Raises Unavailable: it does not answer, or rejects the limits.
        """
        self._ask(
            directory / PIPES,
            f"set_default_active_thread_percentage {core_percent}",
            f"set_default_device_pinned_mem_limit 0 {memory_mib}M",
            "start_server -uid 0",
        )
        self.admit(directory)
        with contextlib.suppress(Unavailable):
            self._ask(directory / CLIENTS, "get_default_active_thread_percentage")
            log.warning("this MPS daemon takes commands from its clients: trust the programs of its card", at=directory)

    def admit(self, directory: Path) -> None:
        """Show the daemon's sockets to its clients, if they do not see them yet. Raises Unavailable: it has none."""
        clients = directory / CLIENTS
        clients.mkdir(exist_ok=True)  # containers have it mounted: it stays the same
        for name in FOR_CLIENTS:
            own, shown, draft = directory / PIPES / name, clients / name, clients / f".{name}"
            try:
                if not (shown.exists() and shown.samefile(own)):
                    draft.unlink(missing_ok=True)
                    os.link(own, draft, follow_symlinks=False)
                    draft.rename(shown)
            except FileNotFoundError as error:
                if name == FOR_CLIENTS[0]:
                    raise Unavailable(f"the MPS control daemon of {directory} has no socket for clients") from error

    def end(self, directory: Path) -> None:
        """End the daemon of this directory and its servers, if any run. Raises Unavailable: it still runs."""
        daemon = self.find(directory)
        if daemon is None:
            return
        servers = descendants(daemon.pid)
        with contextlib.suppress(Unavailable):  # a silent one is killed below
            self._ask(directory / PIPES, f"quit -t {QUIT_SECONDS}")
            if _gone(daemon, QUIT_SECONDS * 3.0):
                return
        for process in (daemon, *servers):
            if process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        if not _gone(daemon, TIMEOUT_SECONDS):
            raise Unavailable(f"the MPS control daemon {daemon.pid} of {directory} was killed and does not end")

    def set_exclusive(self, uuid: str, exclusive: bool) -> None:
        """Let only one process, the MPS server, make contexts on the card, or let all.

        Raises NotSupported: the driver cannot, or we may not; Unavailable: it did not answer.
        """
        mode = nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if exclusive else nvml.NVML_COMPUTEMODE_DEFAULT
        where = f"cannot set the compute mode of card {uuid}"
        try:
            if self._nvml_library is not None and nvml.nvmlLib is None:
                nvml.nvmlLib = ctypes.CDLL(str(self._nvml_library))
            nvml.nvmlInit()
            try:
                nvml.nvmlDeviceSetComputeMode(nvml.nvmlDeviceGetHandleByUUID(uuid), mode)
            finally:
                nvml.nvmlShutdown()
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission, nvml.NVMLError_LibraryNotFound) as error:
            raise NotSupported(f"{where}: {error}") from error
        except (nvml.NVMLError, OSError) as error:
            raise Unavailable(f"{where}: {error}") from error

    def _ask(self, pipes: Path, *commands: str) -> None:
        control = program(self._nvml_library)
        if control is None:
            raise Unavailable(f"{PROGRAM} is no longer on this node")
        try:
            done = subprocess.run(
                [control],
                env=_environment(pipes),
                input="".join(f"{command}\n" for command in commands),
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"{PROGRAM} of {pipes} does not answer: {error}") from error
        if done.returncode:
            said = (done.stdout + done.stderr).strip().splitlines()
            why = said[-1] if said else f"it exits with {done.returncode}"
            raise Unavailable(f"{PROGRAM} of {pipes} rejects {commands[0]}: {why}")


def _environment(pipes: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
    return {
        **kept,
        _PIPES_VARIABLE: str(pipes),
        "CUDA_MPS_LOG_DIRECTORY": str(pipes.parent / LOGS),
    }


def _gone(process: Process, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not process.is_alive()
