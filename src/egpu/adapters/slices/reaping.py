"""Takes processes that have ended out of a usage file, whatever pid namespace they were in.

Programs do that themselves, for their own pid namespace: of another one they cannot tell who lives. Where the
containers of several pods count in one file, what a killed one held would stay counted. So who sees all processes of
the machine looks, too. It frees rows, under the lock that programs join with (`native/include/egpu_abi.h`), and leaves
the totals to the programs that are left, which change them all the time; only where none is left it clears them.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from egpu.adapters.processes import start_time
from egpu.adapters.slices import membership
from egpu.adapters.slices.membership import Name
from egpu.adapters.slices.pages import (
    USAGE_DEVICE,
    USAGE_HEADER,
    USAGE_ROW,
    USAGE_ROWS_OFFSET,
    USAGE_SIZE,
    ProcessUsage,
    decode_usage,
    live_rows,
)

_FREE: Final = struct.pack("<I", 0)
_NOTHING: Final = struct.pack("<Q", 0)
_SPILL_OFFSET: Final = 32
_FLOCK: Final = "hhqqi"
"""struct flock of 64-bit Linux: type, whence, start, length, pid."""


def reap(usage: Path) -> int:
    """Free the rows of processes that have ended; returns how many. Nothing happens while a program joins, to a file
    that says nothing intelligible, or where it cannot be told who lives.

    Raises OSError where the file cannot be opened.
    """
    handle = os.open(usage, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not _ended(os.pread(handle, USAGE_SIZE, 0)):
            return 0
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        # Under the lock nobody takes a row: what is dead in it now stays dead.
        content = os.pread(handle, USAGE_SIZE, 0)
        ended = _ended(content)
        for row in ended:
            os.pwrite(handle, _FREE, USAGE_ROWS_OFFSET + row * USAGE_ROW.size)
        left = {process.device for row, process in live_rows(content) if row not in ended}
        for device in {process.device for _, process in live_rows(content)} - left:
            totals = USAGE_HEADER.size + device * USAGE_DEVICE.size
            os.pwrite(handle, _NOTHING, totals)
            os.pwrite(handle, _NOTHING, totals + _SPILL_OFFSET)
        return len(ended)
    except BlockingIOError:
        return 0  # a program joins, or reaps itself
    finally:
        os.close(handle)


def _ended(content: bytes) -> frozenset[int]:
    """The rows whose processes are no more. The file was read before anybody looks for them: who is not there by then
    will not come."""
    if decode_usage(content).problem:
        return frozenset()
    rows = list(live_rows(content))
    ours = _own_namespace()
    ended = {row for row, process in rows if process.pid_namespace == ours and not _may_live(process)}
    foreign = {row: process for row, process in rows if process.pid_namespace != ours}
    if foreign and Path("/proc/1").exists():  # else /proc shows nothing but our own
        known, unknown = _alive({process.pid_namespace for process in foreign.values()})
        ended |= {
            row
            for row, process in foreign.items()
            if process.start_time not in unknown and (_name(process), process.start_time) not in known
        }
    return frozenset(ended)


def _own_namespace() -> int:
    return int(Path("/proc/self/ns/pid").readlink().name.strip("pid:[]"))


def _may_live(process: ProcessUsage) -> bool:
    """Of our own pid namespace. One that /proc hides from us counts as alive."""
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    hidden = not Path(f"/proc/{process.pid}").exists()
    return hidden or start_time(process.pid) == process.start_time


def _name(process: ProcessUsage) -> Name:
    return Name(process.pid_namespace, process.pid)


def _alive(namespaces: Iterable[int]) -> tuple[frozenset[tuple[Name, int]], frozenset[int]]:
    """Every process of these pid namespaces with its start time, and the start times of those whose namespace we may
    not see."""
    wanted = {f"pid:[{namespace}]" for namespace in namespaces}
    known: set[tuple[Name, int]] = set()
    unknown: set[int] = set()
    for pid in (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()):
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") not in wanted:
                continue
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError:
            unknown.add(start_time(pid))
            continue
        if (name := membership.name_of(pid)) is not None:
            known.add((name, start_time(pid)))
    return frozenset(known), frozenset(unknown)
