"""Directories that only we (and root) can have filled, and files that only we can have made.

We believe the contents of a state directory: we load libraries from it, and end processes and remove directories that
its records name. So before we read it, we walk to it from the root by descriptor. Every directory on the way must
belong to root or to us, and be closed to changes by others; a link is followed only if root or we made it. After that
walk the returned path, without links, means the same directory for good.
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

from egpu_base.errors import NotPrivate, Unavailable
from egpu_base.system.foreign import open_foreign

PASSABLE: Final = 0o711
"""Other users may pass through to names that we give them, but cannot list or change anything. A command that becomes
another user finds its slice's interposer there. If it could not open that library, the loader would leave it out, and
with it the limits."""
OCCUPIED_SECONDS: Final = 5.0
"""The time to wait: a process that was killed a moment ago may still hold its directory."""
MAX_LINKS: Final = 40
"""The kernel's limit of a path's links."""
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OPEN: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_EVERY_USER: Final = 2**32 - 1


def private_directory(path: Path) -> Path:
    """Make the directory and its parents if needed, PASSABLE; ensure that no other user can change it.

    Return its path without links. An existing directory keeps its mode.

    Raises:
        NotPrivate: another user owns, or can change, it or a directory or link on the way.
        Unavailable: it cannot be made, or is not a directory.
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
    """Lock a directory of ours against other processes that lock it. The kernel unlocks it when the returned descriptor
    is closed, or we end. Block for OCCUPIED_SECONDS at most. Raises Unavailable: another process has it.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not lock_within(handle, OCCUPIED_SECONDS):
        os.close(handle)
        raise Unavailable(f"another process uses {directory}: stop it, or use another directory")
    return handle


def lock_within(handle: int, seconds: float) -> bool:
    """Lock an open file or directory exclusively; block until then. Return whether it succeeded in time."""
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
    """Open a file in a directory where other users can make files, such as /dev/shm. Raises PermissionError for
    another user's, and as `open_foreign`."""
    handle = open_foreign(path, access)
    if os.fstat(handle).st_uid != os.geteuid():
        os.close(handle)
        raise PermissionError(errno.EPERM, "not a file of ours", str(path))
    return os.fdopen(handle, "rb" if access == os.O_RDONLY else "r+b")


def _link(path: Path, parent: int) -> Path | None:
    """Return the target of the link `path`, or None for anything else. `parent` is its open directory."""
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
    """Return a descriptor of the directory, which is made if needed."""
    try:
        return os.open(name, _OPEN, dir_fd=parent)
    except FileNotFoundError:
        pass
    try:
        os.mkdir(name, PASSABLE, dir_fd=parent)
    except FileExistsError:
        return os.open(name, _OPEN, dir_fd=parent)  # another process was faster; its owner is checked next
    made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    if os.fstat(made).st_uid == os.geteuid():
        os.fchmod(made, PASSABLE)  # independent of the umask
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
    """Check that no other user can replace a name in it."""
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
            f"{path} can be written by other users (mode {permissions:o}), so its contents are not trusted: {_REMEDY}"
        )


def _trusted() -> set[int]:
    """Return root and us. A user namespace that does not map every user may show root as an unknown one."""
    known = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    unknown = set[int]() if known >= _EVERY_USER else {int(Path("/proc/sys/kernel/overflowuid").read_text())}
    return {0, os.geteuid()} | unknown


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (user {uid})"
    except KeyError:
        return f"user {uid}"


_REMEDY: Final = "remove it (as its owner or as root) if nothing of yours is there, or use another --state-dir"
