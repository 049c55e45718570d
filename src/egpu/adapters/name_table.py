"""Lists of names in JSON, read as numbers and written from numbers by native code (`native/names`).

In Python, a string for each of fifteen thousand names, and a dictionary to find it, take longer than all decisions
about them; so do array operations instead.
"""

import ctypes
import weakref
from functools import cache
from typing import Any

import numpy as np

from egpu.adapters import native
from egpu.core.arrays import IntArray


class _Row(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_char_p) for name in ("before", "between", "after")),
        *((name, ctypes.c_size_t) for name in ("before_size", "between_size", "after_size")),
    )


@cache
def _library() -> Any:
    """Load the library. Calls keep Python's lock: they are shorter than its return takes. Raises NativeMissing."""
    library: Any = ctypes.PyDLL(str(native.path("libegpu-names.so")))
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    for name, result, arguments in (
        ("new", pointer, ()),
        ("free", None, (pointer,)),
        ("add", ctypes.c_int64, (pointer, text, size)),
        ("read", ctypes.c_int64, (pointer, text, size, pointer, size)),
        ("write", pointer, (pointer, pointer, pointer, size, ctypes.POINTER(_Row), ctypes.POINTER(size))),
    ):
        function = getattr(library, f"egpu_names_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class NameTable:
    """Names, each with the next number. Not thread-safe. Making one raises NativeMissing, or MemoryError."""

    def __init__(self) -> None:
        self._library = _library()
        self._names = self._library.egpu_names_new()
        if not self._names:
            raise MemoryError
        weakref.finalize(self, self._library.egpu_names_free, self._names)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, quoted: bytes) -> None:
        """Add one name, as JSON writes it, with its quotes."""
        if self._library.egpu_names_add(self._names, quoted, len(quoted)) < 0:
            raise MemoryError
        self._count += 1

    def read(self, text: bytes) -> IntArray | None:
        """Return the numbers of the names of a JSON list, shape (names,). Return None if it needs a JSON parser: it has
        other names, escapes or spaces, is longer than the table, or is no list."""
        numbers: IntArray = np.empty(self._count, dtype=np.int64)
        count = self._library.egpu_names_read(self._names, text, len(text), numbers.ctypes.data, len(numbers))
        return None if count < 0 else numbers[:count]

    def write(self, numbers: IntArray, after: bytes = b"") -> bytes:
        """Write each name with `after` behind it, and commas between."""
        return self._write(numbers, None, _Row(b"", b"", after, 0, 0, len(after)))

    def write_scored(self, numbers: IntArray, scores: IntArray, before: bytes, between: bytes, after: bytes) -> bytes:
        """Write each name with its score, of shape (names,) and not negative, in texts, with commas."""
        if len(scores) != len(numbers):
            raise ValueError(f"{len(numbers)} names, {len(scores)} scores")
        row = _Row(before, between, after, len(before), len(between), len(after))
        return self._write(numbers, np.ascontiguousarray(scores, dtype=np.int64), row)

    def _write(self, numbers: IntArray, scores: IntArray | None, row: _Row) -> bytes:
        numbers, size = np.ascontiguousarray(numbers, dtype=np.int64), ctypes.c_size_t()
        found = self._library.egpu_names_write(
            self._names,
            numbers.ctypes.data,
            None if scores is None else scores.ctypes.data,
            len(numbers),
            ctypes.byref(row),
            ctypes.byref(size),
        )
        if not found:
            if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < self._count:
                raise IndexError(f"a number is not one of the {self._count} names")
            raise MemoryError
        return ctypes.string_at(found, size.value)
