"""The JSONPath of a CRD's printer columns: fields, unions of fields, indexes, `[*]` and `[?(@.a=="b")]` filters.

Why not a library: jsonpath-ng and python-jsonpath read other dialects, without Kubernetes' escaped dots
(`.metadata.annotations.example\\.org/name`).
"""

import re
from collections.abc import Iterator
from typing import Any, cast

from egpu_sim.cluster.trees import Json, as_list

_STEP = re.compile(
    r"""\.(?P<field>(?:\\.|[^.\[\]\\])+)
      | \[(?P<index>-?\d+)\]
      | \[(?P<every>\*)\]
      | \[(?P<quoted>'[^']*'(?:\s*,\s*'[^']*')*)\]
      | \[\?\(@(?P<path>[^=!<>)]+)==\s*(?P<value>"[^"]*"|'[^']*'|[^)]+)\)\]""",
    re.VERBOSE,
)


def find(obj: Any, path: str) -> list[Any]:
    """Return every value under `path`; an empty list for none. Raises ValueError for an invalid path."""
    values: list[Any] = [obj]
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise ValueError(f"unsupported JSONPath {path!r} at {path[position:]!r}")
        values = [found for value in values for found in _follow(value, match)]
        position = match.end()
    return values


def _follow(value: Any, step: re.Match[str]) -> Iterator[Any]:
    if step["field"] is not None or step["quoted"] is not None:
        quoted = re.findall(r"'([^']*)'", step["quoted"] or "")
        for name in quoted or [step["field"]]:
            key = re.sub(r"\\(.)", r"\1", name)
            if isinstance(value, dict) and key in value:
                yield cast(Json, value)[key]
        return
    items = list(cast(Json, value).values()) if isinstance(value, dict) else as_list(value)
    if step["index"] is not None:
        index = int(step["index"])
        if -len(items) <= index < len(items):
            yield items[index]
    elif step["every"]:
        yield from items
    else:
        wanted = step["value"].strip("\"'")
        yield from (item for item in items if any(str(found) == wanted for found in find(item, step["path"].strip())))
