"""Remove ended processes from a usage file, whatever pid namespace they were in.

Programs do that for their own pid namespace; of another one they cannot tell which processes live. Where the containers
of several pods share one file, the memory of a killed one would stay counted. So a process that sees all processes of
the machine looks, too. It frees rows, under the lock that programs take to join (`native/include/egpu_abi.h`). The
remaining programs keep the totals, which change all the time; it clears these only when no program is left.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from egpu.adapters.slices import membership
from egpu.adapters.slices.membership import Name
from egpu.adapters.slices.pages import USAGE_DEVICE, USAGE_HEADER, USAGE_ROW, USAGE_ROWS_OFFSET, USAGE_SIZE
from egpu.adapters.slices.rows import Row, rows_of
from egpu_base.system import proc
from egpu_base.system.foreign import open_foreign
from egpu_base.system.processes import start_time

_FREE: Final = struct.pack("<I", 0)
_NOTHING: Final = struct.pack("<Q", 0)
_SPILL_OFFSET: Final = 32
_FLOCK: Final = "hhqqi"
"""struct flock of 64-bit Linux: type, whence, start, length, pid."""


def reap(usage: Path) -> int:
    """Free the rows of ended processes; return how many. Do nothing while a program joins, for an invalid file, or
    where it is unknown which processes live.

    Raises OSError where the file cannot be opened.
    """
    handle = open_foreign(usage, os.O_RDWR)
    try:
        if not _ended(os.pread(handle, USAGE_SIZE, 0)):
            return 0
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        # Under the lock no process takes a row: a dead row stays dead.
        content = os.pread(handle, USAGE_SIZE, 0)
        ended = _ended(content)
        for row in ended:
            os.pwrite(handle, _FREE, USAGE_ROWS_OFFSET + row * USAGE_ROW.size)
        rows = rows_of(content)
        left = {row.device for row in rows if row.number not in ended}
        for device in {row.device for row in rows} - left:
            totals = USAGE_HEADER.size + device * USAGE_DEVICE.size
            os.pwrite(handle, _NOTHING, totals)
            os.pwrite(handle, _NOTHING, totals + _SPILL_OFFSET)
        return len(ended)
    except BlockingIOError:
        return 0  # a program joins, or reaps itself
    finally:
        os.close(handle)


def _ended(content: bytes) -> frozenset[int]:
    """Return the rows of ended processes. The file was read before this look: a process that is missing now will not
    appear later."""
    ours, foreign, ended = _own_namespace(), list[Row](), set[int]()
    for row in rows_of(content):
        if row.pid_namespace != ours:
            foreign.append(row)
        elif not _may_live(row):
            ended.add(row.number)
    if foreign and Path("/proc/1").exists():  # otherwise /proc shows only our own
        known, unknown = _alive({row.pid_namespace for row in foreign})
        ended |= {
            row.number
            for row in foreign
            if row.start_time not in unknown and (Name(row.pid_namespace, row.pid), row.start_time) not in known
        }
    return frozenset(ended)


def _own_namespace() -> int:
    return proc.pid_namespace(os.getpid())


def _may_live(process: Row) -> bool:
    """Return whether a process of our own pid namespace may live. One that /proc hides from us counts as alive."""
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    hidden = not Path(f"/proc/{process.pid}").exists()
    return hidden or start_time(process.pid) == process.start_time


def _alive(namespaces: Iterable[int]) -> tuple[frozenset[tuple[Name, int]], frozenset[int]]:
    """Return every process of these pid namespaces with its start time, and the start times of processes whose
    namespace we may not see."""
    wanted = set(namespaces)
    known: set[tuple[Name, int]] = set()
    unknown: set[int] = set()
    for pid in proc.pids():
        try:
            if proc.pid_namespace(pid) not in wanted:
                continue
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError:
            unknown.add(start_time(pid))
            continue
        if (name := proc.asked("name", membership.name_of, pid, None)) is not None:
            known.add((name, start_time(pid)))
        else:
            unknown.add(start_time(pid))  # nobody can say that it has ended
    return frozenset(known), frozenset(unknown)
