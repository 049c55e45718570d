"""Files that other users and containers write, or in whose place they can put something else.

A reader must not block (a FIFO), be led elsewhere (a link), fill its memory (a sparse file) or read a device.
"""

import errno
import os
import stat
from pathlib import Path


def open_foreign(path: Path | str, access: int = os.O_RDONLY) -> int:
    """Return a descriptor of a plain file, to which no link leads as the last step; never block.

    Raises OSError: it is missing, or anything but a plain file.
    """
    handle = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EPERM, "not a plain file", os.fspath(path))
    return handle


def read_foreign(path: Path | str, *, most: int) -> bytes:
    """Return the first `most` bytes of such a file. Raises as `open_foreign`."""
    handle = open_foreign(path)
    try:
        return os.read(handle, most)  # the kernel gives all of a plain file at once
    finally:
        os.close(handle)


def read_end(path: Path | str, *, most: int) -> bytes:
    """Return the last `most` bytes of such a file. Raises as `open_foreign`."""
    with os.fdopen(open_foreign(path), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)
