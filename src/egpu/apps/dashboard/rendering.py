"""Values to HTML. Whatever is put into a template is text there, but for what another template made."""

import hashlib
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from egpu.api.quantities import format_mib

TEMPLATES: Final = Path(__file__).parent / "templates"

_environment = Environment(
    loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


def render(template: str, values: dict[str, Any]) -> Markup:
    """A template's text with `values` in it."""
    return Markup(_environment.get_template(template).render(values))


def digest(text: str) -> str:
    """Of what a live part shows, so that it is not sent twice."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def duration(seconds: float) -> str:
    """Short, for people: `42s`, `5m`, `3h`, `2d`."""
    whole = timedelta(seconds=int(seconds))
    minutes = whole.seconds // 60
    if whole.days:
        return f"{whole.days}d"
    if minutes >= 60:
        return f"{minutes // 60}h"
    return f"{minutes}m" if minutes else f"{whole.seconds}s"


def percent(part: float, total: float) -> int:
    """Whole percent; 0 of nothing."""
    return round(100 * part / total) if total else 0


def link(path: str, /, **query: str | int) -> str:
    """An address of this dashboard, as its pages name them: from where they are, which may be below a proxy's path."""
    return f".{path}?{urlencode(query)}"


_environment.filters["duration"] = duration
_environment.filters["mib"] = format_mib
_helpers: dict[str, Any] = _environment.globals
_helpers |= {"percent": percent, "link": link}
for _name in _environment.list_templates():
    _environment.get_template(_name)  # compiled here, and not while somebody waits for the first page
