"""Elect the process that shares this machine's cards' time: windows of one card need one author.

A process with slices enters their directory, as a link. The leader shares the time of all slices below the entered
directories. It holds the lock of its rank (flock, which the kernel drops with its holder) while no process holds a
higher one: an agent before `egpu serve`, that before any `egpu run`. The directory is one user's, as the book is;
processes of other users have elections, and cards, of their own.
"""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Hashable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final

from egpu.adapters.slices.sharing import TimeSlice
from egpu_base.system.files import last_change
from egpu_base.system.private import private_directory

DIRECTORY: Final = "sharing"
"""The place of the links, below the directory of a user's slices."""
FOLLOW_SECONDS: Final = 0.25
"""The time between two looks of followers: a new leader takes over within this time."""
_LINK: Final = ".slices"


class Rank(IntEnum):
    """The order of leaders: the lowest present rank leads."""

    AGENT = 0
    SERVE = 1
    RUN = 2


class SharingElection:
    """One process's part in it. `directory` is made if needed. Raises NotPrivate, Unavailable: as
    `private_directory`."""

    def __init__(self, directory: Path, rank: Rank) -> None:
        self._directory = private_directory(directory)
        self._rank = rank
        self._held: int | None = None

    def enter(self, slices: Path) -> Path:
        """Let the leader share the time of the slices below this directory; return their path for the leader."""
        slices = slices.resolve()
        link = self._directory / (hashlib.sha256(os.fsencode(slices)).hexdigest()[:16] + _LINK)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(slices)
        return link

    def leads(self) -> bool:
        """Return whether this process leads now. Take the lead when no process has it."""
        if any(self._is_held(rank) for rank in Rank if rank < self._rank):
            return False
        if self._held is None:
            self._held = self._lock(self._rank, fcntl.LOCK_EX)
        return self._held is not None

    def slices(self) -> Iterator[TimeSlice]:
        """Return the slices of all that entered. Forget missing ones."""
        for link in sorted(self._directory.glob(f"*{_LINK}")):
            try:
                found = sorted(os.listdir(link))
            except (FileNotFoundError, NotADirectoryError):
                link.unlink(missing_ok=True)
                continue
            for name in found:
                if not name.startswith("."):  # being made, or removed
                    policy, usage = Path(link, name, "policy"), Path(link, name, "usage")
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        yield TimeSlice((str(policy), policy.stat().st_ino), policy, usage)

    def stamp(self) -> Hashable:
        """Return a value that changes when slices come or go, because their directories change."""
        places = (self._directory, *self._directory.glob(f"*{_LINK}"))
        return tuple(last_change(place) for place in places)

    def leave(self) -> None:
        """Let another process lead."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _is_held(self, rank: Rank) -> bool:
        found = self._lock(rank, fcntl.LOCK_SH)
        if found is not None:
            os.close(found)
        return found is None

    def _lock(self, rank: Rank, kind: int) -> int | None:
        return lock(self._directory / f"{rank.name.lower()}.lock", kind)


def lock(path: Path, kind: int = fcntl.LOCK_EX) -> int | None:
    """Return an open file that holds the lock (flock), or None if another process holds it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle
