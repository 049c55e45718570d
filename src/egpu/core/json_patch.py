"""Operations of a JSON patch, RFC 6902."""

from collections.abc import Mapping
from typing import Any


def add(value: object, *path: str) -> dict[str, Any]:
    """Return the operation that puts a value at a path; "-" as the last part appends it to a list."""
    return {"op": "add", "path": pointer(*path), "value": value}


def annotations(before: Mapping[str, str] | None, after: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the operations that add the annotations of `after` to an object that has those of `before`."""
    new = [add(text, "metadata", "annotations", key) for key, text in after.items() if (before or {}).get(key) != text]
    return [add({}, "metadata", "annotations"), *new] if new and before is None else new


def pointer(*path: str) -> str:
    """Return the JSON pointer of a path, RFC 6901."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)
