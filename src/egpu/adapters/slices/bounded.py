"""A usage file that whoever may write it cannot make larger: the one file of a tmpfs without room for anything else.

The tmpfs is not to be found by any path. Its file is shown in the place where it is to be; there a container runtime
takes it from and mounts it on, as it would any file. What a container writes into it beyond the first page is its own
memory.

File systems take their time over a file or directory that is new (ext4: the longer, the more were removed lately). So
there is one directory on which each tmpfs is mounted while its file is made, and what a file is mounted on is another
name of one pipe: something that can be opened and holds nothing, should anybody ever get to see it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from egpu.adapters import mounts
from egpu.adapters.private import private_directory
from egpu.adapters.slices.pages import USAGE_SIZE, create_usage


class UsageRoom:
    """Where bounded usage files are made: in a directory of its own, on the file system of the places where they are
    shown."""

    def __init__(self, directory: Path) -> None:
        self._directory = private_directory(directory)
        self._directory.chmod(0o700)
        self._room = self._directory / "room"
        self._room.mkdir(exist_ok=True)
        while unmount_bounded(self._room):
            pass  # whoever was killed while he made one
        self._place = self._directory / "place"
        self._place.unlink(missing_ok=True)  # what shows one file of an earlier process can show no other's
        os.mkfifo(self._place, 0o600)

    def create(self, path: Path, *, mode: int) -> None:
        """As `create_usage`, where nothing is yet. `unmount_bounded` comes before its removal.

        Raises NotSupported: this process may not mount. Raises OSError.
        """
        mounts.mount_tmpfs(self._room, size_bytes=USAGE_SIZE, files=1)
        try:
            usage = self._room / path.name
            create_usage(usage, mode=mode, sparse=True)
            os.link(self._place, path)
            mounts.bind(usage, path)
        finally:
            mounts.unmount(self._room)

    def share(self, source: Path, path: Path) -> None:
        """Show the usage file `source` at `path` too, where nothing is yet. `unmount_bounded` comes before its removal.

        Raises OSError: there is none; NotSupported: this process may not mount.
        """
        os.link(self._place, path)
        mounts.bind(source, path)


def unmount_bounded(path: Path) -> bool:
    """Leave what it was mounted on at `path`, which can then be removed; nothing happens where no mount is. Returns
    whether one was."""
    with contextlib.suppress(OSError):
        mounts.unmount(path)
        return True
    return False
