"""A usage file that whoever may write it cannot make larger: the one file of a tmpfs without room for anything else.

The tmpfs is not to be found by any path. Its file is shown in place of an empty one; there a container runtime takes it
from and mounts it on, as it would any file. What a container writes into it beyond the first page is its own memory.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from egpu.adapters import mounts
from egpu.adapters.slices.pages import USAGE_SIZE, create_usage


def create_bounded_usage(path: Path, *, mode: int) -> None:
    """As `create_usage`, where nothing is yet. `unmount_bounded` comes before its removal.

    Raises NotSupported: this process may not mount.
    """
    room = path.with_name(f".{path.name}.room")
    room.mkdir(mode=0o700)
    try:
        mounts.mount_tmpfs(room, size_bytes=USAGE_SIZE, files=1)
        try:
            create_usage(room / path.name, mode=mode, sparse=True)
            path.touch(mode=0o600)
            mounts.bind(room / path.name, path)
        finally:
            mounts.unmount(room)
    finally:
        room.rmdir()


def share_usage(source: Path, path: Path) -> None:
    """Show the usage file `source` at `path` too, where nothing is yet. `unmount_bounded` comes before its removal.

    Raises OSError: there is none; NotSupported: it is mounted, and this process may not mount.
    """
    if source.stat().st_dev == path.parent.stat().st_dev:
        os.link(source, path)
        return
    path.touch(mode=0o600)
    mounts.bind(source, path)


def unmount_bounded(path: Path) -> None:
    """Leave the empty file alone at `path`, which can then be removed; nothing happens where no mount is."""
    with contextlib.suppress(OSError):
        mounts.unmount(path)
