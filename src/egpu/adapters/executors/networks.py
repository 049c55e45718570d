"""Networks of executors: those of one name share one, where ranks of NCCL in their sessions meet; nobody else is in it.

The first one makes it, others enter that of one that lives (`egpu-executor --network`), which root alone can have them
do: where the daemon is somebody else, each has its own. It is gone with the last of them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

from egpu.adapters.executors import record as records
from egpu.adapters.executors.record import ExecutorRecord, Owner
from egpu.adapters.processes import Process
from egpu.errors import CorruptData, Unavailable

TUN: Final = Path("/dev/net/tun")
_ENTER_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.002
_ENTERING: Final = threading.Lock()
"""Held until an executor is in its network: the next one of the same name finds it there."""


@contextlib.contextmanager
def network_of(below: Path, record: ExecutorRecord[Owner]) -> Generator[int | None]:
    """A descriptor of the network that executors of this name have already; None: there is none to enter."""
    with _ENTERING:
        descriptor = None
        for directory in below.iterdir() if record.network and os.geteuid() == 0 else ():
            if not directory.name.startswith(".") and directory.name != record.name:
                descriptor = descriptor or _of(directory, record)
        try:
            yield descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _of(directory: Path, record: ExecutorRecord[Owner]) -> int | None:
    try:
        other = records.read(directory, type(record.owner))
    except (CorruptData, OSError):
        return None
    return open_network(other.process) if other.network == record.network else None


def can_be_linked() -> bool:
    """Whether networks here can have a device by which they reach others (`egpu-link`)."""
    return os.geteuid() == 0 and TUN.exists()


def open_network(process: Process) -> int | None:
    """A descriptor of the network that a process has; None: it has ended, or has none but ours."""
    try:
        if not process.is_alive():
            return None
        descriptor = os.open(_path(process.pid), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    if process.is_alive() and not _is_ours(os.fstat(descriptor)):
        return descriptor
    os.close(descriptor)  # somebody else has that pid by now
    return None


def await_entered(pid: int) -> None:
    """Wait until the process has a network that is not ours; as long as that can be seen. Raises Unavailable: it has
    not by then, and the next one of its name would not find it there."""
    until = time.monotonic() + _ENTER_SECONDS
    with contextlib.suppress(OSError):
        while _is_ours(os.stat(_path(pid))):
            if time.monotonic() > until:
                raise Unavailable(f"process {pid} does not enter its network")
            time.sleep(_POLL_SECONDS)


def _path(pid: int) -> str:
    return f"/proc/{pid}/ns/net"


def _is_ours(status: os.stat_result) -> bool:
    return status.st_ino == os.stat("/proc/self/ns/net").st_ino
