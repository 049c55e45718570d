"""Where the loader would go on without a library that it was told to preload: it says a word on stderr at the most, and
the program runs outside its slice. So it is not started."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from egpu.errors import NotSupported

_ELF: Final = b"\x7fELF"
_KIND: Final = (slice(4, 6), slice(18, 20))
"""Of an ELF header, what library and program must have in common: word size and byte order, processor."""
_HEADER_BYTES: Final = 20


def check_file_system(library: Path) -> None:
    """Raises NotSupported: no program may load code from where `library` is. Raises OSError when it is not there."""
    real = library.resolve(strict=True)
    if os.statvfs(real).f_flag & os.ST_NOEXEC:
        raise NotSupported(
            f"{real.parent} is on a file system that is mounted noexec: programs would be started without {real.name}, "
            "outside their slice; mount it with exec, or choose another place"
        )


def check_program(library: Path, program: str) -> None:
    """Raises NotSupported: `program`, as a shell finds it, is for another processor than `library`. What a script, or
    a program that is started by it, is for is not known before."""
    found = shutil.which(program)
    kinds = [_kind(Path(file)) for file in (found, library) if file is not None]
    if len(kinds) > 1 and None not in kinds and kinds[0] != kinds[1]:
        raise NotSupported(
            f"{found} is for another processor, or word size, than {library.name}: it would be started without it, "
            "outside its slice"
        )


def _kind(file: Path) -> tuple[bytes, ...] | None:
    """None for what is no ELF file, or cannot be read."""
    try:
        with file.open("rb") as content:
            header = content.read(_HEADER_BYTES)
    except OSError:
        return None
    return tuple(header[part] for part in _KIND) if header.startswith(_ELF) else None
