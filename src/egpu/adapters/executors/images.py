"""A store of modules' images per caller: later leases of a caller load the images that an earlier one has sent.

    DIRECTORY/<digest of the caller's name>/    files, each named by the SHA-256 of its content; locked, shared, by
                                                the keepers of the caller's executors (`native/executor/images/store.h`)

Each caller has its own share, and no file serves two callers. So a caller's sending, loading or removing changes
nothing for another. A caller without an executor may lose its images to one that has an executor: the one that came
least recently loses first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import threading
from pathlib import Path
from typing import Final

import structlog

from egpu_base.errors import InvalidInput
from egpu_base.system import proc
from egpu_base.system.private import private_directory

log = structlog.get_logger(__name__)

SHARE_MIB: Final = 256
"""The share of each caller: STORE_SHARE of `native/executor/images/store.h`, which has room for the largest image."""
DEFAULT_MIB: Final = 8 * SHARE_MIB
_GONE: Final = ".gone-"
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_IN_MEMORY: Final = ("tmpfs", "ramfs", "devtmpfs")


class Images:
    """The images of one server. `told` says how many callers have images, or why none are kept."""

    def __init__(self, directory: Path, total_mib: int | None = None) -> None:
        """Set the store up. `total_mib` limits all callers' files; None: DEFAULT_MIB, 0: none are kept.

        Raises InvalidInput: less than a caller's share; NotPrivate, Unavailable: as `private_directory`.
        """
        total_mib = DEFAULT_MIB if total_mib is None else total_mib
        self._callers = total_mib // SHARE_MIB
        self._lock = threading.Lock()
        if total_mib and not self._callers:
            raise InvalidInput("image-cache", f"{total_mib} MiB are less than one caller's {SHARE_MIB}; 0 keeps none")
        self.told = f"images of modules for {self._callers} callers, {SHARE_MIB} MiB each"
        if not total_mib:
            self.told = "images of modules are not kept: --image-cache is 0"
        elif (kind := _file_system(directory)) in _IN_MEMORY:
            # They would take the leases' own memory, which counts for the writer of a file and cannot be taken back.
            self.told = f"images of modules are not kept: {directory.parent} is in memory ({kind})"
            self._callers = 0
        self._directory = private_directory(directory) if self._callers or directory.exists() else directory
        for left in self._directory.glob(f"{_GONE}*"):
            shutil.rmtree(left, ignore_errors=True)
        while len(known := self._known()) > self._callers and self._remove_one(known):
            pass

    def open(self, caller: str) -> int | None:
        """Return a descriptor of the caller's directory, to be inherited by its executor and closed, or None without
        one. Raises OSError."""
        if not self._callers or not caller:
            return None
        path = self._directory / hashlib.sha256(caller.encode()).hexdigest()[:32]
        with self._lock:
            if not path.is_dir():
                known = self._known()
                if len(known) >= self._callers and not self._remove_one(known):
                    log.warning("cannot keep a caller's images", caller=caller, reason=f"{len(known)} callers have all")
                    return None
                path.mkdir(mode=0o700)
            directory = os.open(path, _OPEN)
            os.utime(directory)
            fcntl.flock(directory, fcntl.LOCK_SH)  # does not wait: an exclusive locker holds our lock, too
            return directory

    def clear(self) -> None:
        """Remove the images of every caller that has no executor, and the directory if it is empty then."""
        with self._lock:
            while (known := self._known()) and self._remove_one(known):
                pass
        with contextlib.suppress(OSError):
            self._directory.rmdir()

    def _known(self) -> list[Path]:
        """Return the callers' directories; the one that came least recently is first."""
        if not self._directory.is_dir():
            return []
        return sorted(self._directory.glob("[!.]*"), key=lambda path: (path.stat().st_mtime_ns, path.name))

    def _remove_one(self, known: list[Path]) -> bool:
        """Remove the first directory without an executor. Return whether there was one."""
        for path in known:
            directory = os.open(path, _OPEN)
            try:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    gone = path.with_name(_GONE + path.name)
                    path.rename(gone)
                    shutil.rmtree(gone, ignore_errors=True)
                    return True
            finally:
                os.close(directory)
        return False


def _file_system(path: Path) -> str:
    """Return the kind of the path's file system, or "" if the kernel does not say (proc(5), mountinfo)."""
    there = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    device = there.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    found = proc.mounts(Path("/proc/self/mountinfo").read_bytes())
    return next((mount.kind for mount in found if mount.device == number), "")
