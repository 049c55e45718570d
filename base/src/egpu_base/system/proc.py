"""What `/proc` says of other processes, whatever these do to be misread.

A process chooses its name, its command line and the paths that it maps. So everything here is bytes, and a line ends at
`\\n` alone, which the kernel escapes in names and paths; the kernel's own fields come before a path and after a name.
Every answer is bounded in size, and the long ones in time. A process that is gone or hidden gives an empty answer.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

PROC = "/proc"

Answer = TypeVar("Answer")
FileIdentity = tuple[int, int]
"""Device and inode: the same file by whatever path."""

MAX_BYTES: Final = 1024 * 1024
"""The most that is read of one file: a line of 65,536 groups in `status` fits, and 10,000 usual mappings."""
MAX_SECONDS: Final = 0.02
"""How long the mappings of one process are read. The rest stays unread: its place and its control group remain."""
MAX_COMMAND_BYTES: Final = 64 * 1024
MAX_CGROUP_BYTES: Final = 64 * 1024
"""A path of 4,096 bytes in each of fourteen hierarchies fits."""
_CHUNK: Final = 8 * 1024
"""Twice what the kernel gives at once of `maps`."""
_STAT_BYTES: Final = 4096
_PLACE: Final = 4
_MAPPING: Final = re.compile(rb"[^ \n]+ [^ \n]+ [^ \n]+ ([^ \n]+ [^ \n]+) [^\n]*\n?")
"""A whole line of `maps`, so that the next match begins with the next line: its device and inode. The space after them
is the kernel's, so no inode is cut short where reading stopped."""
_OCTAL: Final = re.compile(rb"\\([0-3][0-7]{2})")

_SYS_OPENAT2: Final = 437
_NO_SYMLINKS: Final = 0x04
_IN_ROOT: Final = 0x10
_CACHED: Final = 0x20
_HOW: Final = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, _NO_SYMLINKS | _IN_ROOT | _CACHED)
"""struct open_how: flags, mode, resolve. No link is followed, also not as the last step; no step leads out of the root;
no file system is asked."""
_DONT_SYNC_EMPTY_PATH: Final = 0x4000 | 0x1000
_STATX_INO: Final = 0x100
_libc: Final[Any] = ctypes.CDLL(None, use_errno=True)

odd: Final = Counter[str]()
"""Processes that could not be understood, by the question; `asked` counts them."""


def pids() -> list[int]:
    """Return the processes of this machine that we can see."""
    return [int(name) for name in os.listdir(PROC) if name.isdecimal()]


def asked(question: str, ask: Callable[[int], Answer], pid: int, default: Answer) -> Answer:
    """Return what `ask` says of a process, and `default` when it fails: one process ends nobody's look at the others.

    The first failure of a question is logged; all are counted in `odd`, except for a process that is gone or hidden.
    """
    try:
        return ask(pid)
    except OSError:
        return default
    except Exception as error:
        odd[question] += 1
        if odd[question] == 1:
            _log().exception("a process cannot be understood", question=question, pid=pid, reason=repr(error))
        return default


def read(pid: int, name: str, *, most: int = MAX_BYTES, seconds: float = 0.0) -> bytes:
    """Return the beginning of `/proc/PID/NAME`; `seconds`: for how long it is read (0: to its end)."""
    until = time.monotonic() + seconds
    try:
        handle = os.open(f"{PROC}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    found: list[bytes] = []
    try:
        while most > 0 and (chunk := os.read(handle, min(most, _CHUNK))):
            found.append(chunk)
            most -= len(chunk)
            if seconds and time.monotonic() > until:
                break
    except OSError:
        return b""
    finally:
        os.close(handle)
    return b"".join(found)


def read_once(pid: int, name: str, most: int) -> bytes:
    """Return what one read of `/proc/PID/NAME` gives: all of a file that the kernel writes as a whole. For the files
    that are asked so often that a second read counts."""
    try:
        handle = os.open(f"{PROC}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, most)
    except OSError:
        return b""
    finally:
        os.close(handle)


def stat(pid: int) -> list[bytes]:
    """Return the fields of `stat` from the state on (proc(5) has them from field 3); empty without such a process."""
    # Behind the last parenthesis: the name may hold any. The kernel's own fields hold none.
    return read_once(pid, "stat", _STAT_BYTES).rpartition(b")")[2].split()


def status(pid: int, field: bytes) -> list[bytes]:
    """Return the words of one line of `status`, not of the first (the name); empty when there is none."""
    _, found, rest = read(pid, "status").partition(b"\n" + field + b":")
    return rest.partition(b"\n")[0].split() if found else []


def parent(pid: int) -> int:
    """Return the parent's pid; 0 for none, and when it is gone."""
    fields = stat(pid)
    return int(fields[1]) if fields else 0


def users(pid: int) -> list[int]:
    """Return the real, effective, saved and file system user; empty when it is gone."""
    return [int(word) for word in status(pid, b"Uid")]


def command(pid: int) -> list[bytes]:
    """Return the command line, which the process may have written itself; at least one word, maybe empty."""
    return read(pid, "cmdline", most=MAX_COMMAND_BYTES).split(b"\0")


def control_groups(pid: int) -> frozenset[str]:
    """Return the paths of a process's control groups, one by hierarchy."""
    return _control_groups(read_once(pid, "cgroup", MAX_CGROUP_BYTES))


@functools.lru_cache(maxsize=256)
def _control_groups(text: bytes) -> frozenset[str]:
    lines = text.split(b"\n")
    return frozenset(os.fsdecode(path) for line in lines if (path := b"".join(line.split(b":", 2)[2:])))


def pid_namespace(pid: int) -> int:
    """Return the inode of its pid namespace. Raises OSError: it is gone, or hidden."""
    return int(os.readlink(f"{PROC}/{pid}/ns/pid").strip("pid:[]"))


def pid_inside(pid: int) -> int:
    """Return its pid in its own pid namespace; 0 when it is gone."""
    return int(words[-1]) if (words := status(pid, b"NSpid")) else 0


def mapped(pid: int, wanted: frozenset[FileIdentity]) -> set[FileIdentity]:
    """Return those of the wanted files that a process has mapped, as far as its mappings are read."""
    return find_mapped(read(pid, "maps", seconds=MAX_SECONDS), wanted) if wanted else set()


def find_mapped(maps: bytes, wanted: frozenset[FileIdentity]) -> set[FileIdentity]:
    """Return those of the wanted files that are in `maps`.

    A line is: range, permissions, offset, device, inode, path. The first five are the kernel's; a path is never read.
    One expression takes all lines, because a process may have many, all of files that look like a wanted one.
    """
    written = _as_written(wanted)
    return {written[found] for found in written.keys() & set(_MAPPING.findall(maps))}


@functools.lru_cache(maxsize=4)
def _as_written(files: frozenset[FileIdentity]) -> dict[bytes, FileIdentity]:
    """Return the files by device and inode as the kernel writes them in `maps`."""
    return {b"%02x:%02x %d" % (os.major(device), os.minor(device), inode): (device, inode) for device, inode in files}


def file_at(pid: int, path: str) -> FileIdentity | None:
    """Return which file is at `path` in a process's own root; None where there is none, or a link leads to it.

    Nothing of the process is waited for: only what the kernel knows already counts, which a mount always is. Before
    Linux 5.12 there is no such question, and the answer is None.
    """
    try:
        root = os.open(f"{PROC}/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        name = os.fsencode(path.lstrip("/"))
        handle = _libc.syscall(_SYS_OPENAT2, root, ctypes.c_char_p(name), ctypes.byref(_HOW), ctypes.sizeof(_HOW))
    finally:
        os.close(root)
    if handle < 0:
        if ctypes.get_errno() in (errno.ENOSYS, errno.EINVAL, errno.EPERM):
            _say_missing(os.strerror(ctypes.get_errno()))
        return None
    try:
        return _identity(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Mount:
    """A line of `mountinfo`: MAJOR:MINOR, the directory of the file system that is mounted, where, and its kind."""

    device: str
    root: str
    place: str
    kind: str


def mounts(mountinfo: bytes) -> list[Mount]:
    """Return the mounts of a `mountinfo`, in its order. The kernel escapes separators in names that others chose."""
    found: list[Mount] = []
    for line in mountinfo.split(b"\n"):
        mount, _, source = line.partition(b" - ")
        words = mount.split(b" ")
        if len(words) > _PLACE:
            root, place = (
                _OCTAL.sub(lambda octal: bytes([int(octal[1], 8)]), words[at]) for at in (_PLACE - 1, _PLACE)
            )
            device, kind = words[_PLACE - 2].decode(), os.fsdecode(source.partition(b" ")[0])
            found.append(Mount(device, os.fsdecode(root), os.fsdecode(place), kind))
    return found


def _identity(handle: int) -> FileIdentity | None:
    """Not by fstat(2), for which a file system of the process's own would be asked."""
    found = (ctypes.c_uint32 * 64)()
    if _libc.statx(handle, b"", _DONT_SYNC_EMPTY_PATH, _STATX_INO, ctypes.byref(found)) != 0:
        return None
    return os.makedev(found[34], found[35]), found[8] | found[9] << 32


@functools.cache
def _say_missing(reason: str) -> None:
    _log().warning("files in other processes' roots are not looked at: openat2 of Linux 5.12 is missing", reason=reason)


def _log() -> Any:
    """Return the logger. Completion of a command line reads processes too, and has no time to load one."""
    import structlog

    return structlog.get_logger(__name__)
