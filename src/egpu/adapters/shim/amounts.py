"""The names that an agent has published in its node's status, for the shim to take back if the agent is killed.

kubelet does not manage these amounts (`egpu.core.offered`). An agent whose DaemonSet is removed withdraws them at its
end. If it is killed before, they would stay. So it writes the names down before it publishes them, and removes the file
after an orderly end. A lock, which the kernel releases with the process, says whether the agent lives."""

from __future__ import annotations

import asyncio
import fcntl
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from egpu_base.system.files import write_atomically

STARTING_SECONDS: Final = 1.0
"""kubelet may end the agent a moment after the shim."""
POLL_SECONDS: Final = 0.1


class _Noted(msgspec.Struct, frozen=True):
    """The names. `ending`: the agent has been told to end, and has not finished."""

    names: tuple[str, ...]
    ending: bool = False


class PublishedAmounts:
    """The agent's side. It holds the lock from here on; several agents may, while one replaces the other. An agent
    without a shim has no file."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._noted: _Noted | None = None
        self._lock = None if file is None else _lock_file(file).open("a")
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_SH)

    def note(self, names: Collection[str]) -> None:
        """Write down what is about to be published."""
        self._write(_Noted(tuple(sorted(names))))

    async def until_end(self) -> None:
        """Wait until cancelled, and then say that this agent ends."""
        try:
            await asyncio.Event().wait()
        finally:
            if self._noted is not None:
                self._write(_Noted(self._noted.names, ending=True))

    def clear(self) -> None:
        """Forget everything: it is withdrawn, or the next agent serves it."""
        self._noted = None
        if self._file is not None and self._lock is not None:
            self._file.unlink(missing_ok=True)
            self._lock.close()

    def _write(self, noted: _Noted) -> None:
        if self._file is not None and noted != self._noted:
            write_atomically(self._file, msgspec.json.encode(noted), mode=0o600)
            self._noted = noted


async def left_behind(file: Path, *, seconds: float) -> tuple[str, ...]:
    """Return the names of an agent that was killed, or is killed within `seconds` of its end; none while one lives."""
    began = time.monotonic()
    while (noted := _read(file)) is not None:
        if not _is_alive(file):
            return noted.names
        if time.monotonic() - began > (seconds if noted.ending else STARTING_SECONDS):
            return ()
        await asyncio.sleep(POLL_SECONDS)
    return ()


def _read(file: Path) -> _Noted | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Noted)
    except (OSError, msgspec.MsgspecError):
        return None


def _is_alive(file: Path) -> bool:
    try:
        with _lock_file(file).open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _lock_file(file: Path) -> Path:
    return file.with_suffix(".lock")
