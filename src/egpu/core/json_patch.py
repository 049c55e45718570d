"""Operations of a JSON patch, RFC 6902."""

from typing import Any


def add(value: object, *path: str) -> dict[str, Any]:
    """Return the operation that puts a value at a path; "-" as the last part appends it to a list."""
    return {"op": "add", "path": pointer(*path), "value": value}


def pointer(*path: str) -> str:
    """Return the JSON pointer of a path, RFC 6901."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)
