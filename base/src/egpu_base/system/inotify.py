"""Watch files for writing and for closing after it, with inotify(7), which Python lacks."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from egpu_base.errors import Unavailable

_MODIFY: Final = 0x2
_CLOSE_WRITE: Final = 0x8
_OVERFLOW: Final = 0x4000
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 64 * 1024
_libc: Final[Any] = ctypes.CDLL(None, use_errno=True)


class FileWatch:
    """Watched files, each with a name. Use it as a context manager, from one thread."""

    def __init__(self) -> None:
        """Open the watch. Raises Unavailable at the kernel's limit for this user (fs.inotify.max_user_instances)."""
        self._descriptor: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise Unavailable(f"cannot watch files (inotify): {os.strerror(ctypes.get_errno())}")
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def fileno(self) -> int:
        """Return the descriptor, which is readable when there is something to `read`."""
        return self._descriptor

    def add(self, name: str, file: Path) -> None:
        """Watch another file under a name that is free. Raises OSError: it is not there, or may not be watched."""
        number: int = _libc.inotify_add_watch(self._descriptor, os.fsencode(file), _MODIFY | _CLOSE_WRITE)
        if number < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(file))
        self._numbers[name], self._names[number] = number, name

    def forget(self, name: str) -> None:
        """Stop watching a file, which may be gone."""
        number = self._numbers.pop(name)
        del self._names[number]
        _libc.inotify_rm_watch(self._descriptor, number)

    def read(self) -> dict[str, bool]:
        """Return the files written since the last call, and whether a writer closed each one. If the kernel lost
        events, return all files, as closed."""
        told: dict[str, bool] = {}
        while True:
            try:
                events = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return told
            offset = 0
            while offset < len(events):
                number, mask, _, length = _EVENT.unpack_from(events, offset)
                offset += _EVENT.size + length
                if mask & _OVERFLOW:
                    told |= dict.fromkeys(self._numbers, True)
                elif number in self._names:  # otherwise an event of a forgotten file
                    name = self._names[number]
                    told[name] = told.get(name, False) or bool(mask & _CLOSE_WRITE)
