"""Directories that nobody but us can have put anything into, and files that nobody but us has made.

What stands in a state directory is believed: libraries of it are loaded, processes that its records name are ended,
directories removed. So before anything in it is looked at, the way there is walked from the root by descriptor: every
directory on it belongs to root or to us, and lets nobody else change it; a link is followed only if root or we made
it. After that walk the path without links, which is what is returned, means the same directory for good.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import stat
import time
from pathlib import Path
from typing import BinaryIO, Final

from egpu.errors import NotPrivate, Unavailable

PASSABLE: Final = 0o711
"""Others may go through to what they are let have by name, and can neither list nor change anything. A command that
becomes another user finds the interposer of its slice there: one that it cannot open is one that the loader leaves
out, and with it the limits."""
OCCUPIED_SECONDS: Final = 5.0
"""A process that was killed a moment ago may not have given its directory back yet."""
MAX_LINKS: Final = 40
"""Of a path, as the kernel has it."""
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OPEN: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_EVERY_USER: Final = 2**32 - 1


def private_directory(path: Path) -> Path:
    """Make the directory and its parents where there are none, PASSABLE; make sure that nobody else can change it.

    Returns its path without links. One that is there keeps its mode.

    Raises:
        NotPrivate: it, or a directory or a link on the way, is somebody else's or can be changed by others.
        Unavailable: it cannot be made, or is no directory.
    """
    at, here = Path("/"), os.open("/", _OPEN)
    links = 0
    todo = list(reversed(path.absolute().parts[1:]))
    try:
        _check_ancestor(at, here)
        while todo:
            name = todo.pop()
            if (target := _link(at / name, here)) is not None:
                links += 1
                if links > MAX_LINKS:
                    raise Unavailable(f"{path} cannot be used: more than {MAX_LINKS} links lead there")
                todo += reversed(target.parts[1:] if target.is_absolute() else target.parts)
                name = "/" if target.is_absolute() else "."
            below = _open(name, here)
            os.close(here)
            at, here = _joined(at, name), below
            if todo:
                _check_ancestor(at, here)
        _check_own(at, here)
    except OSError as error:
        raise Unavailable(f"{path} cannot be used: {at}: {error.strerror}") from error
    finally:
        os.close(here)
    return at


def occupy(directory: Path) -> int:
    """Lock a directory of ours against other processes that do so. The kernel unlocks it when the descriptor that is
    returned is closed, or we end. Blocks for OCCUPIED_SECONDS at most. Raises Unavailable: another process has it.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not lock_within(handle, OCCUPIED_SECONDS):
        os.close(handle)
        raise Unavailable(f"another process has {directory}: end it, or use another directory")
    return handle


def lock_within(handle: int, seconds: float) -> bool:
    """Lock an open file or directory alone, as soon as nobody else has it; returns whether that was in time. Blocks."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        else:
            return True


def open_own(path: Path, access: int = os.O_RDONLY) -> BinaryIO:
    """Open a file in a directory where anybody can make names, such as /dev/shm. Raises PermissionError for what is no
    plain file of ours, and waits for nothing."""
    handle = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(handle)
        raise PermissionError(errno.EPERM, "not a file of ours", str(path))
    return os.fdopen(handle, "rb" if access == os.O_RDONLY else "r+b")


def _link(path: Path, parent: int) -> Path | None:
    """Where the link `path` leads; None for anything else, or nothing. `parent` is its open directory."""
    try:
        found = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(found.st_mode):
        return None
    if found.st_uid not in _trusted():
        raise NotPrivate(f"{path} is a link that {_user(found.st_uid)} made, and is not followed: {_REMEDY}")
    return Path(os.readlink(path.name, dir_fd=parent))


def _open(name: str, parent: int) -> int:
    """A descriptor of the directory, which is made where there is none."""
    try:
        return os.open(name, _OPEN, dir_fd=parent)
    except FileNotFoundError:
        pass
    try:
        os.mkdir(name, PASSABLE, dir_fd=parent)
    except FileExistsError:
        return os.open(name, _OPEN, dir_fd=parent)  # somebody was faster; whoever it was is looked at next
    made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    if os.fstat(made).st_uid == os.geteuid():
        os.fchmod(made, PASSABLE)  # whatever the umask is
    return made


def _joined(at: Path, name: str) -> Path:
    match name:
        case "/":
            return Path("/")
        case "..":
            return at.parent
        case _:
            return at / name


def _check_ancestor(path: Path, directory: int) -> None:
    """Nobody else can take what is in it away and put something in its place."""
    found = os.fstat(directory)
    if found.st_uid not in _trusted():
        raise NotPrivate(f"{path} belongs to {_user(found.st_uid)}, who can change everything below it: {_REMEDY}")
    if found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
        raise NotPrivate(f"{path} can be changed by other users (mode {found.st_mode & 0o7777:o}): {_REMEDY}")


def _check_own(path: Path, directory: int) -> None:
    found = os.fstat(directory)
    permissions = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        raise NotPrivate(f"{path} belongs to {_user(found.st_uid)}, not to {_user(os.geteuid())}: {_REMEDY}")
    if permissions & _OTHERS_WRITE:
        raise NotPrivate(
            f"{path} could be written by other users (mode {permissions:o}), nothing in it can be believed: {_REMEDY}"
        )


def _trusted() -> set[int]:
    """Root and we. In a user namespace that does not know every user, root may be one whom it does not know."""
    known = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    unknown = set[int]() if known >= _EVERY_USER else {int(Path("/proc/sys/kernel/overflowuid").read_text())}
    return {0, os.geteuid()} | unknown


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (user {uid})"
    except KeyError:
        return f"user {uid}"


_REMEDY: Final = "remove it (as its owner or as root) if nothing of yours is there, or use another --state-dir"
