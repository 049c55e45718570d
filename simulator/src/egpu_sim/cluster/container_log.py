"""A container's log for `kubectl logs`: from a line, up to a length, and on while it is written."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from egpu_sim.cluster.log_lines import LogLine, parse

CHUNK_BYTES = 64 * 1024
POLL_SECONDS = 0.1
"""Pause between looks at a followed file."""


@dataclass(frozen=True)
class Wanted:
    """`since_ns`: only lines written later, in nanoseconds since 1970."""

    follow: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since_ns: int = 0
    timestamps: bool = False


class ContainerLog:
    """One reading of a file in the CRI's format. `ended` returns whether the file is complete."""

    def __init__(self, path: Path, wanted: Wanted, ended: Callable[[], bool]) -> None:
        self._path = path
        self._wanted = wanted
        self._ended = ended

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the log's text; with `follow`, until the container has ended."""
        left = self._wanted.limit_bytes
        begun = True
        """True if the next text begins a line, and so gets a timestamp."""
        async for lines in self._batches():
            parts: list[bytes] = []
            for line in lines:
                timed = self._wanted.timestamps and begun
                parts.append(line.written + b" " + line.text if timed else line.text)
                begun = line.text.endswith(b"\n")
            text = b"".join(parts)[:left]
            if left is not None:
                left -= len(text)
            if text:
                yield text
            if left == 0:
                return

    async def _batches(self) -> AsyncIterator[list[LogLine]]:
        wanted, rest = self._wanted, b""
        with await asyncio.to_thread(self._path.open, "rb") as file:
            if wanted.tail_lines is not None:
                await asyncio.to_thread(_seek_tail, file, wanted.tail_lines)
            while True:
                over = not wanted.follow or self._ended()
                while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                    whole, end, rest = (rest + chunk).rpartition(b"\n")
                    found = map(parse, (whole + end).splitlines(keepends=True))
                    yield [line for line in found if line is not None and line.unix_ns >= wanted.since_ns]
                if over:
                    return
                await asyncio.sleep(POLL_SECONDS)


def _seek_tail(file: BinaryIO, lines: int) -> None:
    if lines == 0:
        file.seek(0, 2)
        return
    starts: deque[int] = deque(maxlen=lines)
    position = 0
    for line in file:
        starts.append(position)
        position += len(line)
    file.seek(starts[0] if starts else 0)
