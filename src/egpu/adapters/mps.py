"""MPS servers: `nvidia-cuda-mps-control`, which comes with NVIDIA's driver, one daemon for each card.

Sources: https://docs.nvidia.com/deploy/mps/ (commands of the control program, environment, compute modes) and the man
page of nvidia-cuda-mps-control(1). A daemon starts its server when the first client comes, or when it is told to; the
server takes the defaults of that moment and holds each client to them. A client can only make its own part smaller.
With the card in exclusive-process mode a program that goes around the server gets no context beside it.

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
from pathlib import Path
from typing import Final

from egpu.adapters import native
from egpu.adapters.nvml_package import nvml
from egpu.adapters.processes import Process, descendants
from egpu.errors import NotSupported, Unavailable

PROGRAM: Final = "nvidia-cuda-mps-control"
PIPES: Final = "pipe"
"""Below the directory of a card: what its clients find the server by."""
LOGS: Final = "log"
TIMEOUT_SECONDS: Final = 20.0
QUIT_SECONDS: Final = 1
"""How long a daemon that is told to quit waits for programs that are still there."""
_PID_FILE: Final = f"{PROGRAM}.pid"


def program(nvml_library: Path | None = None) -> Path | None:
    """The control program of this machine, or of the simulated machine whose NVML this is; None where it has none."""
    if nvml_library is not None:
        return native.path(f"tools/{PROGRAM}")
    found = shutil.which(PROGRAM)
    return None if found is None else Path(found)


def start(directory: Path, uuid: str, nvml_library: Path | None = None) -> None:
    """Start the daemon of the card `uuid`; it outlives us. Blocks until it takes commands.

    Raises NotSupported: the program is not there, or does not start.
    """
    control = program(nvml_library)
    if control is None:
        raise NotSupported(f"MPS is run by {PROGRAM}, which this node has not: it comes with NVIDIA's driver")
    for each in (PIPES, LOGS):
        (directory / each).mkdir(parents=True, exist_ok=True)
    environment = {**_environment(directory), "CUDA_VISIBLE_DEVICES": uuid}
    if nvml_library is not None:
        environment["LD_LIBRARY_PATH"] = str(nvml_library.parent)
    with (directory / LOGS / "start.log").open("wb") as output:
        try:
            done = subprocess.run(
                [control, "-d"],
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
    `starter` (directory, UUID) is who starts daemons in our place, as `start` does. Calls block."""

    def __init__(self, nvml_library: Path | None = None, *, starter: Callable[[Path, str], None] | None = None) -> None:
        self._nvml_library = nvml_library
        self._starter = starter

    def present(self) -> bool:
        """Whether there is a control program."""
        return program(self._nvml_library) is not None

    def start(self, directory: Path, uuid: str) -> None:
        """Raises as `start`, and what the starter raises."""
        if self._starter is None:
            start(directory, uuid, self._nvml_library)
        else:
            self._starter(directory, uuid)

    def find(self, directory: Path) -> Process | None:
        """The daemon of this directory, as its own pid file names it; None where none runs."""
        try:
            process = Process.of(int((directory / PIPES / _PID_FILE).read_text()))
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes().partition(b"\0")[0]
        except (OSError, ValueError):
            return None
        return process if process.is_alive() and os.path.basename(os.fsdecode(command)) == PROGRAM else None

    def hold(self, directory: Path, core_percent: int, memory_mib: int) -> None:
        """Each client of the daemon of this directory has at most so much, from the first one on.

        Raises Unavailable: it does not answer, or does not take that.
        """
        self._ask(
            directory,
            f"set_default_active_thread_percentage {core_percent}",
            f"set_default_device_pinned_mem_limit 0 {memory_mib}M",
            "start_server -uid 0",
        )

    def end(self, directory: Path) -> None:
        """End the daemon of this directory and its servers, if any run. Raises Unavailable: it is there still."""
        daemon = self.find(directory)
        if daemon is None:
            return
        servers = descendants(daemon.pid)
        with contextlib.suppress(Unavailable):  # one that does not answer is killed
            self._ask(directory, f"quit -t {QUIT_SECONDS}")
            if _gone(daemon, QUIT_SECONDS * 3.0):
                return
        for process in (daemon, *servers):
            if process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        if not _gone(daemon, TIMEOUT_SECONDS):
            raise Unavailable(f"the MPS control daemon {daemon.pid} of {directory} does not end")

    def set_exclusive(self, uuid: str, exclusive: bool) -> None:
        """Whether only one process, the MPS server, can make contexts on the card; else all can.

        Raises NotSupported: the driver cannot, or may not be asked by us; Unavailable: it did not answer.
        """
        mode = nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if exclusive else nvml.NVML_COMPUTEMODE_DEFAULT
        where = f"the compute mode of card {uuid} is not set"
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

    def _ask(self, directory: Path, *commands: str) -> None:
        control = program(self._nvml_library)
        if control is None:
            raise Unavailable(f"{PROGRAM} is gone from this node")
        try:
            done = subprocess.run(
                [control],
                env=_environment(directory),
                input="".join(f"{command}\n" for command in commands),
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"{PROGRAM} of {directory} does not answer: {error}") from error
        if done.returncode:
            said = (done.stdout + done.stderr).strip().splitlines()
            why = said[-1] if said else f"it exits with {done.returncode}"
            raise Unavailable(f"{PROGRAM} of {directory} does not take {commands[0]}: {why}")


def _environment(directory: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
    return {
        **kept,
        "CUDA_MPS_PIPE_DIRECTORY": str(directory / PIPES),
        "CUDA_MPS_LOG_DIRECTORY": str(directory / LOGS),
    }


def _gone(process: Process, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not process.is_alive()
