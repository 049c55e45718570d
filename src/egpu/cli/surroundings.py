"""Errors of the terminal, the disk or the machine as one sentence instead of a traceback."""

import codecs
import errno
import io
import os
import sys
from collections.abc import Mapping
from typing import Final

TRACEBACK: Final = "EGPU_TRACEBACK"
"""Environment variable that shows errors with Python's traceback, for debugging."""

_REPLACED: Final[Mapping[str, str]] = {
    "█": "#", "░": ".", "…": "...", "·": ".", "→": "->", "←": "<-", "×": "x", "≥": ">=", "≤": "<=", "–": "-", "—": "-",
}  # fmt: skip
"""Replacements for characters of our output that a terminal's encoding lacks."""

_REMEDIES: Final[Mapping[int, str]] = {
    errno.ENOSPC: "free some space there, or use another directory (--state-dir, TMPDIR)",
    errno.EDQUOT: "free some space there, or use another directory (--state-dir, TMPDIR)",
    errno.EROFS: "use a writable directory (--state-dir, TMPDIR, HOME)",
    errno.EACCES: "use a directory of your own (--state-dir, TMPDIR, HOME), or ask for permission",
    errno.EPERM: "use a directory of your own (--state-dir, TMPDIR, HOME), or ask for permission",
    errno.EMFILE: "raise the limit of open files: ulimit -n",
    errno.ENFILE: "close other programs: this machine has reached its limit of open files",
    errno.EAGAIN: "raise the limit of processes: ulimit -u",
    errno.ENOMEM: "free some memory of this machine",
    errno.EADDRINUSE: "another program listens there: choose another port",
    errno.EADDRNOTAVAIL: "this machine does not have that address: choose one of its own",
}


def prepare_streams() -> None:
    """Make stdout and stderr replace characters that the terminal's encoding lacks."""
    codecs.register_error("egpu-terminal", _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="egpu-terminal")


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_REPLACED.get(letter, "?") for letter in letters), error.end


def sentence(error: OSError) -> str:
    """Return what failed, where, and what to do about it."""
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]
    what = error.strerror or str(error) or type(error).__name__
    remedy = _REMEDIES.get(error.errno or 0, f"set {TRACEBACK}=1 to see the traceback")
    return f"{' and '.join(names) + ': ' if names else ''}{what}; {remedy}"


def finish_output() -> None:
    """Flush stdout. On failure, drop the rest and raise OSError."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # Otherwise Python tries again at its end and prints its own error.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise OSError(error.errno, error.strerror, "standard output") from error
