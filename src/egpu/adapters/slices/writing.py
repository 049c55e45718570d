"""Make processes of this machine that write policy pages wait for each other.

The process that shares out time and the one that watches memory may differ. They lock the parent of the slice's
directory, because no program in a slice can open that one and keep it locked.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(page: Path) -> Generator[None]:
    """Keep other processes from writing a page of a slice beside this one inside the block."""
    handle = os.open(page.parent.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
