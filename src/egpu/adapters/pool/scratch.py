"""A directory that lives as long as its process. A killed process leaves it, and the next process that makes one
removes it.

Each is locked (flock) by its owner. The kernel drops the lock with the process, so a directory that can be locked is
unused, also as seen from another container, where process numbers mean nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

from egpu_base.errors import ElasticGPUError, Unavailable
from egpu_base.system.private import private_directory

_ATTEMPTS: Final = 16


@contextlib.contextmanager
def directory(prefix: str, below: Path) -> Generator[Path]:
    """Make a new directory whose name begins with `prefix`; remove those of killed processes.

    Raises Unavailable when it cannot be made.
    """
    sweep(prefix, below)
    try:
        path, lock = _made(prefix, below)
    except OSError as error:
        raise Unavailable(f"cannot make a directory in {below}: {error}") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def short_directory() -> Path:
    """Return a place for short socket paths, not below a long TMPDIR: the user's own runtime directory, if there is
    one. After `su` the variable may name another user's, who could replace our libraries."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if 0 < len(runtime) < 60 and Path(runtime).is_dir():
        with contextlib.suppress(ElasticGPUError):
            return private_directory(Path(runtime))
    return Path("/tmp")  # noqa: S108  where users cannot remove the names of others


def sweep(prefix: str, below: Path) -> None:
    """Remove the directories of killed processes."""
    for path in below.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # in use, another user's, or gone meanwhile
            lock = _locked(path)
            try:
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _made(prefix: str, below: Path) -> tuple[Path, int]:
    for _ in range(_ATTEMPTS):
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=below))
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            lock = _locked(path)
            # A sweep before our lock has removed it; a later one cannot get the lock.
            if path.exists():
                return path, lock
            os.close(lock)
    raise Unavailable(f"other processes removed {_ATTEMPTS} new directories in {below} at once; try again")


def _locked(path: Path) -> int:
    """Lock it. Raises BlockingIOError when it is in use, OSError when it is not ours: root could also open and remove
    another user's, with any effects that this user prepared."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    if os.fstat(lock).st_uid != os.geteuid():
        os.close(lock)
        raise PermissionError(errno.EPERM, "another user's directory", str(path))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(lock)
        raise
    return lock
