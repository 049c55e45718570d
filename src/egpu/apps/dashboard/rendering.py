"""Values to HTML. Every value in a template is escaped, except the output of another template."""

import hashlib
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from egpu_base.api.quantities import format_mib

TEMPLATES: Final = Path(__file__).parent / "templates"

_environment = Environment(
    loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


def render(template: str, values: dict[str, Any]) -> Markup:
    """Return a template's text with `values` in it."""
    return Markup(_environment.get_template(template).render(values))


def digest(text: str) -> str:
    """Return a digest of a live part, so that it is not sent twice."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def duration(seconds: float) -> str:
    """Return a short duration for people: `42s`, `5m`, `3h`, `2d`."""
    whole = timedelta(seconds=int(seconds))
    minutes = whole.seconds // 60
    if whole.days:
        return f"{whole.days}d"
    if minutes >= 60:
        return f"{minutes // 60}h"
    return f"{minutes}m" if minutes else f"{whole.seconds}s"


def percent(part: float, total: float) -> int:
    """Return whole percent; 0 of nothing."""
    return round(100 * part / total) if total else 0


def link(path: str, /, **query: str | int) -> str:
    """Return an address of this dashboard, relative to its pages, which may be below a proxy's path."""
    return f".{path}?{urlencode(query)}"


_environment.filters["duration"] = duration
_environment.filters["mib"] = format_mib
_helpers: dict[str, Any] = _environment.globals
_helpers |= {"percent": percent, "link": link}
for _name in _environment.list_templates():
    _environment.get_template(_name)  # compiled here, so that the first page does not wait for it
