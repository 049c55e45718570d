"""Files that are there whole or not at all, links to files, and when either changed."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FRESH_NS: Final = 100_000_000
"""Longer than the clock of any file system stands still."""


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Put a file of exactly these permissions at `path`: readers see the old one or the new one, never half of one.

    Args:
        durable: it is there after a power failure, too. That waits for the disk, and is only for what could not be
            made again; without it a machine that loses power may come back with an empty file.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)  # whatever the umask is, and whatever a draft was that a crash left here
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


def write_new(path: Path | str, data: bytes, *, mode: int = 0o644) -> None:
    """Make a file of exactly these permissions where nothing is yet, and where nobody looks before all is there."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        os.fchmod(handle, mode)
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]
    finally:
        os.close(handle)


def link_like(link: Path | str, target: Path, *, like: Path | str) -> bool:
    """Make the symbolic link `link` to `target`: another name of the link `like`, where that one leads there. Returns
    whether it is.

    File systems are slow to give a link a place of its own (ext4: some 0.2 ms), and quick to give it another name.
    """
    try:
        if os.readlink(like) == os.fspath(target):
            os.link(like, link, follow_symlinks=False)
            return True
    except OSError:
        pass  # there is none, it is of another file system, or has as many names as it can have
    os.symlink(target, link)
    return False


def links(directory: Path, targets: Mapping[str, Path], *, like: Path) -> None:
    """Have these symbolic links in a directory, by name: made like those in the directory `like`, where that is on the
    same file system. Those that are there and right stay."""
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
    """A number that is another one when a file was written, or something in a directory came, went or was renamed; 0
    where it is not there. Not of a file that is mapped: who writes that way leaves no time.
    Just after a change it is another one each time: more may follow before the file system's clock moves on."""
    try:
        return change_of(path.stat())
    except OSError:
        return 0


def change_of(status: os.stat_result) -> int:
    """The same of a file or directory that was looked at just now."""
    now_ns = time.time_ns()
    return now_ns if now_ns - status.st_mtime_ns < FRESH_NS else status.st_mtime_ns
