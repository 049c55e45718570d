"""Atomic writes of files, links to files, and the times of their changes."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FRESH_NS: Final = 100_000_000
"""Longer than the clock resolution of any file system."""


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Put a file of exactly these permissions at `path`: readers see the whole old one or the whole new one.

    Args:
        durable: keep it through a power failure, too. That waits for the disk, and is only for content that cannot be
        made again; without it a machine that loses power may come back with an empty file.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    handle = _new(draft, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)  # independent of the umask
            file.write(data)
            if durable:
                file.flush()
                os.fsync(handle)
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if durable:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _new(draft: Path, mode: int) -> int:
    """Open a new file. One that is there may be of a crash, or of another user who waits for what is written."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(draft, flags, mode)
    except FileExistsError:
        draft.unlink(missing_ok=True)
        return os.open(draft, flags, mode)


def write_new(path: Path | str, data: bytes, *, mode: int = 0o644) -> None:
    """Make a file of exactly these permissions at a free path that no reader opens before all is written."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        os.fchmod(handle, mode)
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]
    finally:
        os.close(handle)


def link_like(link: Path | str, target: Path, *, like: Path | str) -> bool:
    """Make the symbolic link `link` to `target`, as another name of the link `like` if that has the same target. Return
    whether it is one.

    File systems create a link slowly (ext4: some 0.2 ms), and give an existing one another name quickly.
    """
    try:
        if os.readlink(like) == os.fspath(target):
            os.link(like, link, follow_symlinks=False)
            return True
    except OSError:
        pass  # it is missing, on another file system, or at its limit of names
    os.symlink(target, link)
    return False


def links(directory: Path, targets: Mapping[str, Path], *, like: Path) -> None:
    """Make these symbolic links in a directory, by name, like those in the directory `like` if that is on the same file
    system. Correct existing links stay."""
    place, there = os.fspath(directory), set(os.listdir(directory))
    near = like.exists() and like.stat().st_dev == directory.stat().st_dev
    for name, target in targets.items():
        link = f"{place}/{name}"
        if name in there:
            if os.path.islink(link) and os.readlink(link) == os.fspath(target):
                continue
            os.unlink(link)
        if near:
            link_like(link, target, like=f"{like}/{name}")
        else:
            os.symlink(target, link)


def last_change(path: Path) -> int:
    """Return a number that changes when a file is written, or an entry of a directory comes, goes or is renamed; 0 if
    it is missing. Writes through a mapping do not count: they leave no time. Just after a change the number differs on
    each call, because more changes may follow before the file system's clock advances."""
    try:
        return change_of(path.stat())
    except OSError:
        return 0


def change_of(status: os.stat_result) -> int:
    """Return the same number for a file or directory with this fresh `status`."""
    now_ns = time.time_ns()
    return now_ns if now_ns - status.st_mtime_ns < FRESH_NS else status.st_mtime_ns
