"""Checks before a preload. Where the loader cannot preload a library, it prints at most a line on stderr, and the
program runs outside its slice; so we do not start it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from egpu_base.errors import NotSupported

_ELF: Final = b"\x7fELF"
_KIND: Final = (slice(4, 6), slice(18, 20))
"""The parts of an ELF header that library and program must share: word size and byte order, processor."""
_HEADER_BYTES: Final = 20


def check_file_system(library: Path) -> None:
    """Check that programs can load code from `library`. Raises NotSupported if not, and OSError if it is missing."""
    real = library.resolve(strict=True)
    if os.statvfs(real).f_flag & os.ST_NOEXEC:
        raise NotSupported(
            f"{real.parent} is on a file system mounted noexec, so programs would start without {real.name}, "
            "outside their slice; mount it with exec, or choose another place"
        )


def check_program(library: Path, program: str) -> None:
    """Check `program`, as a shell finds it. Raises NotSupported if it is for another processor than `library`. The
    processor of a script's interpreter, or of a child, is not known before."""
    found = shutil.which(program)
    kinds = [_kind(Path(file)) for file in (found, library) if file is not None]
    if len(kinds) > 1 and None not in kinds and kinds[0] != kinds[1]:
        raise NotSupported(
            f"{found} is for another processor or word size than {library.name}; it would start without it, "
            "outside its slice"
        )


def _kind(file: Path) -> tuple[bytes, ...] | None:
    """Return None for a file that is no ELF file, or cannot be read."""
    try:
        with file.open("rb") as content:
            header = content.read(_HEADER_BYTES)
    except OSError:
        return None
    return tuple(header[part] for part in _KIND) if header.startswith(_ELF) else None
