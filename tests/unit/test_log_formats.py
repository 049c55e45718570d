"""Logs are lines for people on a terminal, and JSON everywhere else."""

import io
import json
import logging
from collections.abc import Callable, Generator

import pytest
import structlog

from egpu_base.runtime import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Configure = Callable[[io.StringIO, str], structlog.stdlib.BoundLogger]


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Generator[Configure]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level

    def configure(stream: io.StringIO, form: str) -> structlog.stdlib.BoundLogger:
        monkeypatch.setattr("sys.stderr", stream)
        logs.configure("serve", form=form)
        return structlog.get_logger("test")

    yield configure
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.mark.parametrize(
    ("stream", "form", "for_people"),
    [
        (Terminal(), "auto", True),
        (io.StringIO(), "auto", False),
        (io.StringIO(), "text", True),
        (Terminal(), "json", False),
    ],
)
def test_a_terminal_gets_lines_for_people(
    configured: Configure, stream: io.StringIO, form: str, for_people: bool
) -> None:
    configured(stream, form).info("serving", name="one", cards=2, listen="127.0.0.1:7434", why="no room")
    (line,) = stream.getvalue().splitlines()
    if for_people:
        time, said = line.split(" ", 1)
        assert len(time) == len("12:00:00")
        assert said == 'INFO    serve: serving name=one cards=2 listen=127.0.0.1:7434 why="no room"'
    else:
        assert json.loads(line)["name"] == "one"


def test_a_log_has_no_effect_on_the_terminal(configured: Configure) -> None:
    stream, evil = Terminal(), "\x1b[2J\r\x9b1m\u202e\nforged"
    log = configured(stream, "auto")
    log.warning(evil, reason=evil)
    log.error("failed", exc_info=ValueError(evil))
    lines = stream.getvalue().splitlines()
    assert all(line.isprintable() for line in lines)
    assert lines[0].count("\\x1b[2J") + lines[0].count("\\u001b[2J") == 2
    assert lines[1].endswith("ERROR   serve: failed")
    assert all(line.startswith("    ") for line in lines[2:]), "no line is taken for another event"


def test_a_long_line_is_cut(configured: Configure) -> None:
    stream = Terminal()
    configured(stream, "text").info("said", words="x" * 2 * logs.MAX_LINE)
    assert len(stream.getvalue()) < logs.MAX_LINE + 8


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown log format 'xml': use one of auto, json, text"):
        logs.configure("serve", form="xml")
