"""Processes of this machine that write policy pages wait for each other.

Who shares out time and who watches memory may be two of them. The directory that a slice's own is in is locked, because
no program in a slice can open that one, and keep it locked.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(page: Path) -> Generator[None]:
    """Nobody else writes a page of a slice beside this one inside the block."""
    handle = os.open(page.parent.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
