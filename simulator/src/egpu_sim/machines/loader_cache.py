"""A loader cache with a simulated driver in the place of NVIDIA's.

A program then finds the driver by name, whatever its environment says, and loads it on demand, as on a real machine.
The cache is a changed copy of the machine's own. `ldconfig` would also search every folder and change files of the
machine. Format: glibc, sysdeps/generic/dl-cache.h (`struct cache_file_new`), since 2.2.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

SYSTEM_CACHE: Final = Path("/etc/ld.so.cache")
_MAGIC: Final = b"glibc-ld.so.cache1.1"
_HEADER: Final = struct.Struct("=20sIIB3xI12x")  # magic, entries, bytes of strings, flags, offset of extensions
_ENTRY: Final = struct.Struct("=iIIIQ")  # flags, offsets of name and path, (unused), required hardware
_C_LIBRARY: Final = "libc.so.6"


class Library(NamedTuple):
    """An entry: a library's path, its kind, and the hardware that it needs (0: any)."""

    name: str
    path: str
    flags: int
    hardware: int


def with_libraries(directory: Path, names: Sequence[str], *, cache: Path = SYSTEM_CACHE) -> bytes | None:
    """Return the contents of `cache`, with `names` in `directory` only. Return None without a cache in glibc's present
    format, as with another C library."""
    try:
        packed = _packed(cache.read_bytes(), tuple(names))
    except (OSError, ValueError, struct.error):
        return None
    return None if packed is None else packed.written(directory)


@dataclass(frozen=True)
class _Packed:
    """A cache whose own libraries have no path yet: all entries, the strings of the others, and the indexes of the
    own."""

    entries: tuple[bytes, ...]
    strings: bytes
    own: tuple[tuple[int, Library], ...]

    def written(self, directory: Path) -> bytes:
        """Return the cache with its own libraries in `directory`. Their strings come first."""
        start = _HEADER.size + len(self.entries) * _ENTRY.size + len(self.strings)
        below, own, written = f"{directory}/".encode("utf-8", "surrogateescape"), bytearray(), list(self.entries)
        for position, library in self.own:
            offset, name = start + len(own), library.name.encode("utf-8", "surrogateescape") + b"\0"
            own += name + below + name
            written[position] = _ENTRY.pack(library.flags, offset, offset + len(name), 0, 0)
        size = len(self.strings) + len(own)
        return b"".join((_HEADER.pack(_MAGIC, len(written), size, 0, 0), *written, self.strings, own))


@lru_cache(maxsize=1)
def _packed(content: bytes, names: tuple[str, ...]) -> _Packed | None:
    """Cache the result: packing takes milliseconds, and containers differ only in the directory."""
    libraries = _ordered(content, names)
    if libraries is None:
        return None
    start = _HEADER.size + len(libraries) * _ENTRY.size
    strings, entries, own = bytearray(), list[bytes](), list[tuple[int, Library]]()
    for position, library in enumerate(libraries):
        if library.path[0] != "/":
            entries.append(b"")
            own.append((position, library))
            continue
        offsets: list[int] = []
        for text in (library.name, library.path):
            offsets.append(start + len(strings))
            strings += text.encode("utf-8", "surrogateescape") + b"\0"
        entries.append(_ENTRY.pack(library.flags, *offsets, 0, 0))
    return _Packed(tuple(entries), bytes(strings), tuple(own))


def _ordered(content: bytes, names: tuple[str, ...]) -> tuple[Library, ...] | None:
    """Return the entries in the order in which the loader searches. The paths of `names` are below a directory that is
    not known yet."""
    libraries = read(content)
    kind = next((library.flags for library in libraries if library.name == _C_LIBRARY), None)
    if kind is None:
        return None
    # Sorting keeps the order of equal names, which decides between them. Entries for special hardware need the
    # extensions, which are left out: the loader finds the plain library of that name.
    kept = [library for library in libraries if library.name not in names and not library.hardware]
    own = [Library(name, name, kind, 0) for name in names]
    return tuple(sorted([*kept, *own], key=lambda library: _parts(library.name), reverse=True))


def read(content: bytes) -> list[Library]:
    """Read the entries of a cache, in its order. Raises ValueError or struct.error for another format."""
    content = content[content.index(_MAGIC) :]  # Older versions of glibc put their own format first.
    _, count, *_ = _HEADER.unpack_from(content)

    def text(offset: int) -> str:
        return content[offset : content.index(0, offset)].decode("utf-8", "surrogateescape")

    entries = _ENTRY.iter_unpack(content[_HEADER.size : _HEADER.size + count * _ENTRY.size])
    return [Library(text(name), text(path), flags, hardware) for flags, name, path, _, hardware in entries]


def _parts(name: str) -> list[tuple[int, int]]:
    """Return the name as the loader compares it (`_dl_cache_libcmp`): a number is more than any other character."""
    return [
        (1, int(part)) if part.isdecimal() else (0, ord(part)) for part in re.findall(r"[0-9]+|[^0-9]", name, re.ASCII)
    ]
