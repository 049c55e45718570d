"""Processes that cannot be mistaken for one another: a pid is used again, a pid with its start time is not."""

import contextlib
import ctypes
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MAX_STAT_BYTES: Final = 4096
_SET_CHILD_SUBREAPER: Final = 36
_libc: Final[Any] = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Process:
    """A process that cannot be mistaken for a later one of the same pid. `start_time`: clock ticks since boot."""

    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> "Process":
        """The process that has this pid now (start time 0: there is none)."""
        return cls(pid, start_time(pid))

    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return self.start_time != 0 and start_time(self.pid) == self.start_time

    @property
    def started_at(self) -> float:
        """When it was started, in seconds since the boot."""
        return self.start_time / os.sysconf("SC_CLK_TCK")


def start_time(pid: int) -> int:
    """Field 22 of ``/proc/<pid>/stat``; 0 when there is no such process, or nothing of it but its exit status."""
    try:
        with Path(f"/proc/{pid}/stat").open("rb", buffering=0) as file:  # asked so often that a buffer counts
            stat = file.read(MAX_STAT_BYTES)
    except OSError:
        return 0
    # The command's name is in parentheses and may hold anything, so count from behind it. A zombie with threads is a
    # program whose first thread has ended.
    fields = stat.rpartition(b")")[2].split()
    return 0 if fields[0] in (b"Z", b"X") and int(fields[17]) <= 1 else int(fields[19])


def descendants(pid: int) -> list[Process]:
    """Its children, theirs, and so on; those whose parent has ended are no longer among them."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: list[Process] = []
    todo = [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += map(Process.of, children)
        todo += children
    return found


def user_of(pid: int) -> int | None:
    """The real user id of a process; None when it is gone, or hidden from us."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("Uid:")), None)


def seconds_since_boot() -> float:
    """Of a clock that nobody sets, and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """This boot of the machine; "" where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def adopt_orphans() -> None:
    """From now on whoever loses its parent below this process becomes its child, and so stays a descendant; it has to
    wait for them (`reap_orphans`). Needs no right, and is not passed on to children."""
    if _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:  # Linux has it since 3.4
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap_orphans(child: int) -> None:
    """Wait for those of our children that have ended, but for `child`, whose exit status somebody else wants."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != child:
            os.waitpid(ended.si_pid, os.WNOHANG)
