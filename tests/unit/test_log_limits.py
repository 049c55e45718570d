"""A log that somebody else makes grow is bounded, and says what is not in it."""

import io
import json
import logging
from collections.abc import Generator
from typing import Any

import pytest
import structlog

from egpu_base.runtime import log_limits, logs
from egpu_base.runtime.log_limits import BURST, IDLE_SECONDS, MAX_KINDS, RateLimit


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Log:
    """What a process of ours has written, with a clock of its own."""

    def __init__(self, stream: io.StringIO, clock: Clock) -> None:
        self.stream, self.clock = stream, clock

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Generator[Log]:
    stream, clock = io.StringIO(), Clock()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(logs, "RateLimit", lambda: RateLimit(clock))
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    logs.configure("test")
    yield Log(stream, clock)
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def test_refused_hellos_do_not_fill_a_disk(written: Log) -> None:
    """2,500 a second, for a day: 43 GB as it was."""
    log = structlog.get_logger("egpu.adapters.pool.listener")
    for second in range(60):
        written.clock.now = float(second)
        for number in range(200):
            log.info("caller turned away", peer=f"{second}.{number}", reason="the secret is not this pool's")
    said = written.events().count("caller turned away")
    assert BURST < said < BURST + 60 * log_limits.PER_SECOND + 1
    told = [
        line for line in written.lines if line["event"].endswith("caller turned away") and "dropped" in line["event"]
    ]
    dropped = sum(int(line["event"].split()[0]) for line in told)
    assert 60 * 200 - said - dropped <= 200, "all but the last second's are told"


def test_other_lines_come_through_meanwhile(written: Log) -> None:
    log = structlog.get_logger("a")
    for number in range(BURST * 2):
        log.info("caller turned away", number=number)
        if number % 100 == 0:
            log.info("granted", lease=number)
    assert written.events().count("granted") == BURST * 2 / 100


def test_what_was_dropped_is_told_when_nothing_more_of_it_comes(written: Log) -> None:
    log = structlog.get_logger("a")
    for _ in range(BURST + 7):
        log.info("refused")
    written.clock.now = IDLE_SECONDS + 1
    log.info("something else")
    assert "7 lines were dropped: a: refused" in written.events()


def test_kinds_and_all_of_them_together_are_bounded(written: Log) -> None:
    log = logging.getLogger("foreign")
    for number in range(10 * MAX_KINDS):
        log.warning(f"it says something else each time: {number}")
    filters = logging.getLogger().handlers[0].filters
    assert [len(one._kinds) for one in filters if isinstance(one, RateLimit)] == [MAX_KINDS + 1]
    for number in range(log_limits.BURST_IN_ALL):
        log.warning("one kind")
        logging.getLogger(f"logger {number % 100}").warning("it says the same")
    assert len(written.lines) <= log_limits.BURST_IN_ALL


def test_a_line_is_bounded_and_says_so(written: Log) -> None:
    structlog.get_logger("a").info("a name", name="\x1b" * 10**6)
    (line,) = written.lines
    assert line["event"] == "a name"
    assert line["characters"] > 10**6
    assert len(written.stream.getvalue()) < 2 * logs.MAX_LINE


def test_no_character_of_others_reaches_a_terminal(written: Log) -> None:
    structlog.get_logger("a").info("a name", name="\x1b[2J\n\x9b\u202e")
    logging.getLogger("b").warning("a name: %s", "\x1b[2J\n\x9b")
    assert written.stream.getvalue().replace("\n", "").isprintable()
    assert len(written.lines) == 2
