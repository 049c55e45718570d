"""Processes by pid and start time. The kernel reuses a pid, but not a pid with its start time."""

import contextlib
import ctypes
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from egpu_base.system import proc

_SET_CHILD_SUBREAPER: Final = 36
_libc: Final[Any] = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Process:
    """A process, different from a later one with the same pid. `start_time` is in clock ticks since boot."""

    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> "Process":
        """Return the process that has this pid now. Its start time is 0 if there is none."""
        return cls(pid, start_time(pid))

    def is_alive(self) -> bool:
        """Return whether this process still runs."""
        return self.start_time != 0 and start_time(self.pid) == self.start_time

    @property
    def started_at(self) -> float:
        """The time of its start, in seconds since boot."""
        return self.start_time / os.sysconf("SC_CLK_TCK")


def start_time(pid: int) -> int:
    """Return field 22 of ``/proc/<pid>/stat``; 0 without such a process, or if only its exit status is left."""
    # A zombie with threads is a program whose first thread has ended.
    if not (fields := proc.stat(pid)) or (fields[0] in (b"Z", b"X") and int(fields[17]) <= 1):
        return 0
    return int(fields[19])


def descendants(pid: int) -> list[Process]:
    """Return a process's children, their children, and so on. Processes whose parent has ended are not found."""
    parents: dict[int, list[int]] = {}
    for each in proc.pids():
        if above := proc.parent(each):
            parents.setdefault(above, []).append(each)
    found: list[Process] = []
    todo = [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += map(Process.of, children)
        todo += children
    return found


def user_of(pid: int) -> int | None:
    """Return the real user id of a process; None if it has ended, or is hidden from this process."""
    return next(iter(proc.users(pid)), None)


def seconds_since_boot() -> float:
    """Return the time of a clock that cannot be set, and that continues while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the identity of this boot of the machine; "" if the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, so that they stay descendants.

    This process must then wait for them (`reap_orphans`). The setting needs no right, and children do not inherit it.
    """
    if _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:  # Linux has it since 3.4
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap_orphans(child: int) -> None:
    """Wait for all children that have ended, except `child`: its exit status is for the caller."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != child:
            os.waitpid(ended.si_pid, os.WNOHANG)
