"""Users for executors. Each executor has a user of its own, from a range of numbers without accounts.

    /run/egpu-executor-users/<uid>   locked by the executor with this user, as long as it lives

The daemon takes the lock before the executor starts, and the executor inherits it. So the lock outlives the daemon and
ends with the executor. The daemons of a machine share the directory. A user is given again only when no process has it.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from egpu.adapters.executors.leftovers import processes_as
from egpu_base.errors import InvalidInput, NotSupported, Unavailable
from egpu_base.system.private import open_own

LOCKS: Final = Path("/run/egpu-executor-users")
DEFAULT_RANGE: Final = "2000000000-2000016384"
"""One more than a pool's most leases. The numbers are above those of systemd, useradd and container runtimes (systemd's
UIDS-GIDS), and below 2^31."""
_MAX_ID: Final = 2**32 - 2


@dataclass(frozen=True)
class User:
    """One executor's user, and its group with the same number. `lock` is a descriptor, to be inherited and closed."""

    uid: int
    lock: int

    def close(self) -> None:
        """Close the lock's descriptor. The executor keeps its own."""
        os.close(self.lock)


class Users:
    """The users of a range. `first` is only a group, which owns simulated cards' files; executors get the others."""

    def __init__(self, first: int, last: int, locks: Path = LOCKS) -> None:
        """Check that this process may use the range here. Raises NotSupported: it may not."""
        self.first, self.last = first, last
        self._locks = locks
        self._next = first + 1
        if os.geteuid() != 0:
            raise NotSupported("only root can give executors users of their own")
        for name in ("uid_map", "gid_map"):
            if not _mapped(Path("/proc/self", name).read_text(), first, last):
                raise NotSupported(f"this user namespace has no ids {first}-{last}")
        try:
            locks.mkdir(mode=0o700, exist_ok=True)
            found = locks.lstat()
        except OSError as error:
            raise NotSupported(f"{locks} cannot be made: {error.strerror}") from error
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
            raise NotSupported(f"{locks} is not a directory of root's alone")

    def __str__(self) -> str:
        return f"{self.first + 1}-{self.last}"

    def take(self) -> User:
        """Take a user that no process has. Raises Unavailable if all are taken."""
        for _ in range(self.last - self.first):
            uid = self._next
            self._next = uid + 1 if uid < self.last else self.first + 1
            user = None if _has_account(uid) else self._lock(uid)
            if user is not None:
                return user
        raise Unavailable(f"each of the users {self} has an executor or an account; give executors more of them")

    def _lock(self, uid: int) -> User | None:
        path = self._locks / str(uid)
        used_before = path.exists()
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        if used_before and processes_as(uid):  # sessions that have outlived their executor
            os.close(handle)
            return None
        return User(uid, handle)

    def admit(self, state: Path) -> None:
        """Let executors write the file of a simulated machine's cards, as they may write a real card's devices.

        Raises Unavailable: the file is not this user's.
        """
        try:
            file = open_own(state)
        except OSError as error:
            raise Unavailable(f"the simulated machine {state} cannot be opened: {error.strerror}") from error
        with file:
            found = os.fstat(file.fileno())
            if found.st_gid != self.first:
                os.fchown(file.fileno(), -1, self.first)
                os.fchmod(file.fileno(), stat.S_IMODE(found.st_mode) | 0o060)


def parse(text: str) -> tuple[int, int]:
    """Parse FIRST-LAST. Raises InvalidInput: it is no range, has fewer than two numbers, or has root's number."""
    first, dash, last = text.partition("-")
    if dash and first.isdigit() and last.isdigit() and 0 < int(first) < int(last) <= _MAX_ID:
        return int(first), int(last)
    raise InvalidInput("executor-users", f"{text!r} is not FIRST-LAST, two numbers or more and none of them 0")


def _mapped(lines: str, first: int, last: int) -> bool:
    """Return whether one line of a `uid_map` has all the numbers (user_namespaces(7))."""
    fields = (tuple(map(int, line.split())) for line in lines.splitlines())
    return any(inside <= first and last < inside + count for inside, _outside, count in fields)


def _has_account(uid: int) -> bool:
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwuid(uid))
    with contextlib.suppress(KeyError):
        return bool(grp.getgrgid(uid))
    return False
