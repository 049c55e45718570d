"""Networks of executors. Only executors with the same name share one, for the ranks of NCCL in their sessions.

The first executor makes it, and others enter the network of a living one (`egpu-executor --network`), which needs root.
Under a daemon without root, each executor has its own. It ends with the last of them.
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
from egpu_base.errors import CorruptData, Unavailable
from egpu_base.system.processes import Process

TUN: Final = Path("/dev/net/tun")
_ENTER_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.002
_ENTERING: Final = threading.Lock()
"""A lock that is held until an executor is in its network, so that the next one of the same name finds it."""


@contextlib.contextmanager
def network_of(below: Path, record: ExecutorRecord[Owner]) -> Generator[int | None]:
    """Return a descriptor of the network that executors of this name share already, or None."""
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
    """Return whether networks here can have a device that connects them to others (`egpu-link`)."""
    return os.geteuid() == 0 and TUN.exists()


def open_network(process: Process) -> int | None:
    """Return a descriptor of a process's network; None if it has ended, or has only ours."""
    try:
        if not process.is_alive():
            return None
        descriptor = os.open(_path(process.pid), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    if process.is_alive() and not _is_ours(os.fstat(descriptor)):
        return descriptor
    os.close(descriptor)  # its pid is reused by now
    return None


def await_entered(pid: int) -> None:
    """Wait until the process has a network other than ours, where that can be seen. Raises Unavailable when it does
    not, because the next executor of its name would not find it."""
    until = time.monotonic() + _ENTER_SECONDS
    with contextlib.suppress(OSError):
        while _is_ours(os.stat(_path(pid))):
            if time.monotonic() > until:
                raise Unavailable(f"process {pid} did not enter its network in time")
            time.sleep(_POLL_SECONDS)


def _path(pid: int) -> str:
    return f"/proc/{pid}/ns/net"


def _is_ours(status: os.stat_result) -> bool:
    return status.st_ino == os.stat("/proc/self/ns/net").st_ino
