"""`egpu` on a terminal of 80 columns and 24 lines: a real one, with a size, as far as a program can tell."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping

from support.waiting import DEADLINE_SECONDS

COLUMNS, LINES = 80, 24
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>()][0-9A-B]?")


def on_terminal(*arguments: str, environment: Mapping[str, str], interrupt_at: str = "") -> list[str]:
    """What `egpu ARGUMENTS` shows, by line, without colours; a line too long for the terminal stays one here.

    `interrupt_at`: Ctrl-C is pressed once that was shown.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "egpu", *arguments],
        env={**environment, "TERM": "xterm-256color", "LANG": "C.UTF-8"},
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        ready, _, _ = select.select([ours], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"no end of {arguments}: {shown!r}"
        try:
            more = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        shown += more
        if interrupt_at and interrupt_at.encode() in shown:
            process.send_signal(signal.SIGINT)
            interrupt_at = ""
    os.close(ours)
    process.wait(DEADLINE_SECONDS)
    text = _CONTROL.sub("", shown.decode(errors="replace"))
    return [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]
