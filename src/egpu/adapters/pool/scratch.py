"""A directory that is there as long as its process: a process that was killed leaves it, and the next that makes one
removes it.

Each is locked (flock) by its owner. The kernel takes the lock away with the process, so whoever can lock a directory
knows that nobody uses it, also from another container, where process numbers say nothing.
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

from egpu.adapters.private import private_directory
from egpu.errors import ElasticGPUError, Unavailable

_ATTEMPTS: Final = 16


@contextlib.contextmanager
def directory(prefix: str, below: Path) -> Generator[Path]:
    """A new directory whose name begins with `prefix`; those that killed processes have left there are removed.

    Raises Unavailable when it cannot be made.
    """
    sweep(prefix, below)
    try:
        path, lock = _made(prefix, below)
    except OSError as error:
        raise Unavailable(f"no directory can be made in {below}: {error}") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def short_directory() -> Path:
    """Socket paths are short: not below a long TMPDIR. The user's own runtime directory, where there is one: after `su`
    the variable may name that of somebody else, who could put libraries in the place of ours."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if 0 < len(runtime) < 60 and Path(runtime).is_dir():
        with contextlib.suppress(ElasticGPUError):
            return private_directory(Path(runtime))
    return Path("/tmp")  # noqa: S108  where nobody can take away another's names


def sweep(prefix: str, below: Path) -> None:
    """Remove what killed processes have left."""
    for path in below.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # in use, somebody else's, or gone meanwhile
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
            # Whoever swept before we had the lock has removed it, or will not get the lock any more.
            if path.exists():
                return path, lock
            os.close(lock)
    raise Unavailable(f"{_ATTEMPTS} new directories in {below} were all removed by others at once")


def _locked(path: Path) -> int:
    """Raises BlockingIOError when it is in use, OSError when it is none of ours: root could open and remove another
    user's too, at whatever cost that user has arranged."""
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
