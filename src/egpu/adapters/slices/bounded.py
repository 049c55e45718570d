"""A usage file that its writers cannot enlarge: the only file of a tmpfs without room for anything else.

No path leads to the tmpfs. Its file is shown at its final place, from where a container runtime mounts it like any
file. Anything that a container writes into it beyond the first page is its own memory.

File systems are slow with new files and directories (ext4: the slower, the more were removed lately). So one directory
serves as mount point for each tmpfs while its file is made. A file's mount point is another name of one pipe, which can
be opened and holds nothing, should a process ever see it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from egpu.adapters.slices.pages import USAGE_SIZE, create_usage
from egpu_base.system import mounts
from egpu_base.system.private import private_directory


class UsageRoom:
    """Makes bounded usage files in a directory of its own, on the file system of their final places."""

    def __init__(self, directory: Path) -> None:
        self._directory = private_directory(directory)
        self._directory.chmod(0o700)
        self._room = self._directory / "room"
        self._room.mkdir(exist_ok=True)
        while unmount_bounded(self._room):
            pass  # left by a killed process
        self._place = self._directory / "place"
        self._place.unlink(missing_ok=True)  # an earlier process's mount point cannot serve another file
        os.mkfifo(self._place, 0o600)

    def create(self, path: Path, *, mode: int) -> None:
        """Create a file as `create_usage`, at a free path. Call `unmount_bounded` before its removal.

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
        """Show the usage file `source` at `path`, too, which is free. Call `unmount_bounded` before its removal.

        Raises OSError: it is missing; NotSupported: this process may not mount.
        """
        os.link(self._place, path)
        mounts.bind(source, path)


def unmount_bounded(path: Path) -> bool:
    """Unmount the file at `path`, which can then be removed; do nothing without a mount. Return whether one was
    there."""
    with contextlib.suppress(OSError):
        mounts.unmount(path)
        return True
    return False
