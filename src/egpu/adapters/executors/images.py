"""Where images of modules are kept by caller: what one lease has sent, later leases of its caller load.

    DIRECTORY/<digest of the caller's name>/    files, each named by the SHA-256 of what is in it; locked, shared, by
                                                the keepers of the caller's executors (`native/executor/store.h`)

Each caller has a share of its own, and nothing is stored once for two of them: what one has sent, loads, or has had
removed changes nothing for another. A caller that has no executor may lose its images to one that has: the one that
came least recently goes first.
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

from egpu.adapters.private import private_directory
from egpu.errors import InvalidInput

log = structlog.get_logger(__name__)

SHARE_MIB: Final = 256
"""Of each caller: STORE_SHARE of `native/executor/store.h`, in which the largest image has room."""
DEFAULT_MIB: Final = 8 * SHARE_MIB
_GONE: Final = ".gone-"
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_IN_MEMORY: Final = ("tmpfs", "ramfs", "devtmpfs")


class Images:
    """The images of one server. `told` says in words how many, or why there are none."""

    def __init__(self, directory: Path, total_mib: int | None = None) -> None:
        """`total_mib` is a bound for all callers' files, None for DEFAULT_MIB; 0: none are kept.

        Raises InvalidInput: not a caller's share, NotPrivate, Unavailable: as `private_directory`.
        """
        total_mib = DEFAULT_MIB if total_mib is None else total_mib
        self._callers = total_mib // SHARE_MIB
        self._lock = threading.Lock()
        if total_mib and not self._callers:
            raise InvalidInput("image-cache", f"{total_mib} MiB are less than one caller's {SHARE_MIB}; 0 keeps none")
        self.told = f"images of modules for {self._callers} callers, {SHARE_MIB} MiB each"
        if not total_mib:
            self.told = "images of modules are not kept: not asked for"
        elif (kind := _file_system(directory)) in _IN_MEMORY:
            # They would be memory, and that of leases: files that nobody can have back count for who writes them.
            self.told = f"images of modules are not kept: {directory.parent} is in memory ({kind})"
            self._callers = 0
        self._directory = private_directory(directory) if self._callers or directory.exists() else directory
        for left in self._directory.glob(f"{_GONE}*"):
            shutil.rmtree(left, ignore_errors=True)
        while len(known := self._known()) > self._callers and self._remove_one(known):
            pass

    def open(self, caller: str) -> int | None:
        """A descriptor of the caller's directory, to be inherited by its executor and closed; None: it has none. Raises
        OSError."""
        if not self._callers or not caller:
            return None
        path = self._directory / hashlib.sha256(caller.encode()).hexdigest()[:32]
        with self._lock:
            if not path.is_dir():
                known = self._known()
                if len(known) >= self._callers and not self._remove_one(known):
                    log.warning(
                        "a caller's images are not kept", caller=caller, reason=f"{len(known)} callers have all"
                    )
                    return None
                path.mkdir(mode=0o700)
            directory = os.open(path, _OPEN)
            os.utime(directory)
            fcntl.flock(directory, fcntl.LOCK_SH)  # waits for nobody: who locks it alone holds our lock, too
            return directory

    def clear(self) -> None:
        """Remove the images of every caller that has no executor, and the directory where nothing is left in it."""
        with self._lock:
            while (known := self._known()) and self._remove_one(known):
                pass
        with contextlib.suppress(OSError):
            self._directory.rmdir()

    def _known(self) -> list[Path]:
        """The callers' directories, that of the one that came least recently first."""
        if not self._directory.is_dir():
            return []
        return sorted(self._directory.glob("[!.]*"), key=lambda path: (path.stat().st_mtime_ns, path.name))

    def _remove_one(self, known: list[Path]) -> bool:
        """Remove the first that no executor has. False: each has one."""
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
    """The kind of the one that the path is on, or would be; "" where the kernel does not say (proc(5), mountinfo)."""
    there = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    device = there.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == number:
            return source.split()[0]
    return ""
