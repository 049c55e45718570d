"""The arbiter of turns between latency work and others: `egpu-turns` (native/turns), a process that answers within some
tens of microseconds. This module runs it while a card needs it, and tells it which slices share which card.

When this process dies, the arbiter lets latency work launch at any time, and ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from egpu.adapters import native
from egpu_base.errors import ElasticGPUError

log = structlog.get_logger(__name__)

PROGRAM: Final = "egpu-turns"
AGAIN_SECONDS: Final = 5.0
"""The time before the arbiter is started again after it has ended."""
END_SECONDS: Final = 5.0
READY_SECONDS: Final = 2.0
"""The time for its answer: the thread that waits also gives out windows. A starting process answers within some
hundredths of a second."""


@dataclass(frozen=True)
class TurnSlice:
    """A slice on a card with turns: its files, the card's position in them, and its share."""

    policy: Path
    usage: Path
    position: int
    core_ppm: int
    latency: bool

    def line(self) -> str:
        kind = "latency" if self.latency else "batch"
        return f"slice\t{kind}\t{self.core_ppm}\t{self.position}\t{self.policy}\t{self.usage}\n"


class TurnArbiter:
    """Runs the arbiter while cards have turns."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._told = ""
        self._ended_at = -1e9

    def follow(self, cards: Sequence[Sequence[TurnSlice]]) -> bool:
        """Give out turns on these cards, and on no others; return whether an arbiter does."""
        wanted = "".join(f"card\n{''.join(one.line() for one in slices)}" for slices in cards)
        if not wanted:
            self.close()
            return False
        if self._process is not None and self._process.poll() is not None:
            log.warning("the arbiter of turns has ended", code=self._process.returncode)
            self._drop()
        if self._process is None and time.monotonic() - self._ended_at < AGAIN_SECONDS:
            return False
        if wanted != self._told:
            try:
                self._tell(wanted)
            except (OSError, ElasticGPUError) as error:
                log.warning("no turns for latency work: their arbiter does not run", reason=str(error))
                self._drop()
                return False
        return True

    def close(self) -> None:
        """End the arbiter."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                assert self._process.stdin
                self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
            self._drop()
            self._ended_at = -1e9

    def _tell(self, wanted: str) -> None:
        if self._process is None:
            command = [str(native.path(PROGRAM))]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0)
        assert self._process.stdin
        assert self._process.stdout
        _ask(self._process.stdin.fileno(), self._process.stdout.fileno(), f"{wanted}go\n".encode())
        self._told = wanted

    def _drop(self) -> None:
        """Forget a process that has ended, or that is no use."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):
                    assert pipe
                    pipe.close()
        self._process, self._told, self._ended_at = None, "", time.monotonic()


def _ask(there: int, back: int, question: bytes) -> None:
    """Write the question, and wait for the answer `ready`; both for READY_SECONDS at most."""
    os.set_blocking(there, False)
    deadline, answer = time.monotonic() + READY_SECONDS, b""
    poll = select.poll()
    poll.register(back, select.POLLIN)
    poll.register(there, select.POLLOUT)
    while not answer.endswith(b"\n"):
        left_seconds = deadline - time.monotonic()
        events = poll.poll(left_seconds * 1000) if left_seconds > 0 else []
        if not events:
            raise OSError(f"{PROGRAM} has not answered within {READY_SECONDS:g} s")
        for ready, _ in events:
            if ready == there and question:
                question = question[os.write(there, question) :]
                if not question:
                    poll.unregister(there)
            elif ready == back:
                part = os.read(back, len(b"ready\n"))
                if not part:
                    raise OSError(f"{PROGRAM} has ended")
                answer += part
    if answer != b"ready\n":
        raise OSError(f"{PROGRAM} has answered {answer!r}")
