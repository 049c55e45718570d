"""What the terminal, the disk or the machine refuses a command, said in a sentence instead of a traceback."""

import codecs
import errno
import io
import os
import sys
from collections.abc import Mapping
from typing import Final

TRACEBACK: Final = "EGPU_TRACEBACK"
"""Set in the environment, it lets errors through as Python shows them, for those who look for the cause."""

_REPLACED: Final[Mapping[str, str]] = {
    "█": "#", "░": ".", "…": "...", "·": ".", "→": "->", "←": "<-", "×": "x", "≥": ">=", "≤": "<=", "–": "-", "—": "-",
}  # fmt: skip
"""Signs of our output for terminals that have no such letters."""

_REMEDIES: Final[Mapping[int, str]] = {
    errno.ENOSPC: "free some space there, or use another place (--state-dir, TMPDIR)",
    errno.EDQUOT: "free some space there, or use another place (--state-dir, TMPDIR)",
    errno.EROFS: "use a place that can be written (--state-dir, TMPDIR, HOME)",
    errno.EACCES: "use a place that is yours (--state-dir, TMPDIR, HOME), or ask for the right",
    errno.EPERM: "use a place that is yours (--state-dir, TMPDIR, HOME), or ask for the right",
    errno.EMFILE: "let it open more files: ulimit -n",
    errno.ENFILE: "close other programs: this machine has no open files left",
    errno.EAGAIN: "let it start more processes: ulimit -u",
    errno.ENOMEM: "free some memory of this machine",
    errno.EADDRINUSE: "another program listens there: choose another port",
    errno.EADDRNOTAVAIL: "this machine has no such address: choose one that it has",
}


def prepare_streams() -> None:
    """Let stdout and stderr print something for every letter, whatever the terminal's encoding."""
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
    """What was refused, where, and what to do about it."""
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]
    what = error.strerror or str(error) or type(error).__name__
    remedy = _REMEDIES.get(error.errno or 0, f"with {TRACEBACK}=1 in the environment it says where this came from")
    return f"{' and '.join(names) + ': ' if names else ''}{what}; {remedy}"


def finish_output() -> None:
    """Write what stdout still holds. Raises OSError where it cannot be written; then nothing is left to be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python would try again when it ends, and say so in its own words.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise OSError(error.errno, error.strerror, "standard output") from error
