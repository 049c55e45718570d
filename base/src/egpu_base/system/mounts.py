"""Mounts of this process's mount namespace, with mount(2) and umount2(2)."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from egpu_base.errors import NotSupported
from egpu_base.system import selinux

_NOSUID_NODEV_NOEXEC: Final = 2 | 4 | 8
_BIND: Final = 4096
_DETACH: Final = 2
_libc: Final[Any] = ctypes.CDLL(None, use_errno=True)


def mount_tmpfs(at: Path, *, size_bytes: int, files: int, mode: int = 0o700) -> None:
    """Mount a tmpfs with room for so many bytes and so many files, without the right to execute them. `mode` is its
    root directory's.

    Raises NotSupported: this process may not mount.
    """
    room = f"size={size_bytes},nr_inodes={files + 1},mode={mode:o}{selinux.mount_option()}"  # the root counts too
    _call("mount", b"tmpfs", os.fsencode(at), b"tmpfs", ctypes.c_ulong(_NOSUID_NODEV_NOEXEC), room.encode())


def bind(source: Path, at: Path) -> None:
    """Show the file or directory `source` at `at`, too. Raises NotSupported: this process may not mount."""
    _call("mount", os.fsencode(source), os.fsencode(at), None, ctypes.c_ulong(_BIND), None)


def unmount(at: Path) -> None:
    """Unmount `at`; processes that have it open keep it. Raises OSError when nothing is mounted there."""
    if _libc.umount2(os.fsencode(at), _DETACH) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(at))


def allowed(below: Path) -> bool:
    """Return whether this process may mount in that directory, by trying."""
    with tempfile.TemporaryDirectory(prefix=".mount-", dir=below) as folder:
        try:
            mount_tmpfs(Path(folder), size_bytes=4096, files=1)
        except NotSupported:
            return False
        unmount(Path(folder))
        return True


def _call(function: str, *arguments: Any) -> None:
    if getattr(_libc, function)(*arguments) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise NotSupported(f"{os.fsdecode(arguments[1])}: cannot mount there: {reason}")
