"""Lines of the CRI's log files, as egpu-enter writes them and `kubectl logs` reads them.

    2026-11-23T08:15:30.123456789Z stdout F text

F ends a line. P marks a part that continues in the next line of the same stream. Source: the logging format of
Kubernetes' Container Runtime Interface.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass

_LINE = re.compile(rb"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)\.(\d{9})Z (stdout|stderr) ([FP]) ([^\n]*)\n?")


@dataclass(frozen=True)
class LogLine:
    """One line of a file. `text` includes the line's end, if any; `unix_ns` is the time of writing."""

    written: bytes
    unix_ns: int
    stream: str
    text: bytes


def parse(line: bytes) -> LogLine | None:
    """Parse a line of a log file. Return None for any other text."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    *moment, nanoseconds, stream, tag, text = found.groups()
    year, month, day, hour, minute, second = map(int, moment)
    seconds = calendar.timegm((year, month, day, hour, minute, second))
    end = b"\n" if tag == b"F" else b""
    return LogLine(line.partition(b" ")[0], seconds * 10**9 + int(nanoseconds), stream.decode(), text + end)


def plain(content: bytes) -> str:
    """Return a container's output, both streams in the order in which they were read."""
    lines = map(parse, content.splitlines(keepends=True))
    return b"".join(line.text for line in lines if line is not None).decode(errors="replace")
