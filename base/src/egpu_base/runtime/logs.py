"""Structured logs on stderr, the standard library's records included: one JSON object per line, or lines for people on
a terminal. They are bounded in number (`egpu_base.runtime.log_limits`) and in length."""

import json
import logging
import sys
from typing import Any, Final

import structlog

from egpu_base.runtime.log_limits import RateLimit

MAX_LINE: Final = 16 * 1024
"""Characters. A traceback has a few thousand."""
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("auto", "json", "text")
"""auto: text if stderr is a terminal."""


def configure(component: str, *, level: str = "info", form: str = "auto") -> None:
    """Configure the logs; call it first in a process. Raises ValueError for an unknown level or format."""
    if level not in LEVELS:
        raise ValueError(f"unknown log level {level!r}: use one of {', '.join(LEVELS)}")
    if form not in FORMATS:
        raise ValueError(f"unknown log format {form!r}: use one of {', '.join(FORMATS)}")
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    for_people = sys.stderr.isatty() if form == "auto" else form == "text"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _line_for_people if for_people else _json_line,
            ],
        )
    )
    handler.addFilter(RateLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("httpx2", "httpcore2", "uvicorn.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    structlog.contextvars.bind_contextvars(component=component)


_render = structlog.processors.JSONRenderer()


def _json_line(logger: Any, method: str, event: structlog.typing.EventDict) -> str | bytes:
    """Return one line, cut if it is too long."""
    line = _render(logger, method, event)
    if len(line) <= MAX_LINE:
        return line
    head = {
        key: str(event[key])[:256] for key in ("event", "level", "logger", "timestamp", "component") if key in event
    }
    return json.dumps(head | {"characters": len(line), "cut": str(line[: MAX_LINE // 4])})


def _line_for_people(_logger: Any, _method: str, event: structlog.typing.EventDict) -> str:
    """Return the time, the level, the event and its fields on a line, and a traceback below it. Nothing in them has an
    effect on the terminal."""
    time, said = str(event.pop("timestamp", ""))[11:19], _plain(str(event.pop("event", "")))
    level, component = event.pop("level", ""), event.pop("component", "")
    event.pop("logger", None)
    trace = [f"    {_plain(line)}" for line in str(event.pop("exception", "")).splitlines()]
    fields = "".join(f" {key}={_value(value)}" for key, value in event.items())
    lines = "\n".join((f"{time} {str(level).upper():<7} {component}: {said}{fields}", *trace))
    return lines if len(lines) <= MAX_LINE else f"{lines[:MAX_LINE]} …"


def _value(value: Any) -> str:
    text = str(value)
    return text if text.isprintable() and text and not set(text) & set(' "=') else json.dumps(text)


def _plain(text: str) -> str:
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
