"""Structured logs: one JSON object per line on stderr, the standard library's records included; lines are bounded in
number (`egpu.runtime.log_limits`) and in length."""

import json
import logging
import sys
from typing import Any, Final

import structlog

from egpu.runtime.log_limits import RateLimit

MAX_LINE: Final = 16 * 1024
"""Characters. A traceback has a few thousand."""
LEVELS = ("debug", "info", "warning", "error")


def configure(component: str, *, level: str = "info") -> None:
    """Call once, first thing in a process. Raises ValueError for an unknown level."""
    if level not in LEVELS:
        raise ValueError(f"log level {level!r}: known are {', '.join(LEVELS)}")
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
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _rendered,
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


def _rendered(logger: Any, method: str, event: structlog.typing.EventDict) -> str | bytes:
    """One line, cut where it is too long."""
    line = _render(logger, method, event)
    if len(line) <= MAX_LINE:
        return line
    head = {
        key: str(event[key])[:256] for key in ("event", "level", "logger", "timestamp", "component") if key in event
    }
    return json.dumps(head | {"characters": len(line), "cut": str(line[: MAX_LINE // 4])})
