"""Told by the kernel when somebody writes a file, or closes it after writing: inotify(7), which Python has not."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from egpu.errors import Unavailable

_MODIFY: Final = 0x2
_CLOSE_WRITE: Final = 0x8
_OVERFLOW: Final = 0x4000
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 64 * 1024
_libc: Final[Any] = ctypes.CDLL(None, use_errno=True)


class FileWatch:
    """Files, each known by a name. Use as a context manager; not for several threads."""

    def __init__(self) -> None:
        """Raises Unavailable: this user has as many as the kernel allows (fs.inotify.max_user_instances)."""
        self._descriptor: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise Unavailable(f"files cannot be watched: {os.strerror(ctypes.get_errno())}")
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def fileno(self) -> int:
        """Readable when there is something to `read`."""
        return self._descriptor

    def add(self, name: str, file: Path) -> None:
        """Watch another file under a name that is free. Raises OSError: it is not there, or may not be watched."""
        number: int = _libc.inotify_add_watch(self._descriptor, os.fsencode(file), _MODIFY | _CLOSE_WRITE)
        if number < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(file))
        self._numbers[name], self._names[number] = number, name

    def forget(self, name: str) -> None:
        """Watch a file no more; it may be gone."""
        number = self._numbers.pop(name)
        del self._names[number]
        _libc.inotify_rm_watch(self._descriptor, number)

    def read(self) -> dict[str, bool]:
        """What was written since the last time, and whether somebody closed it who wrote. All of them, as closed, where
        the kernel could not keep so many events."""
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
                elif number in self._names:  # else an event of one that is watched no more
                    name = self._names[number]
                    told[name] = told.get(name, False) or bool(mask & _CLOSE_WRITE)
