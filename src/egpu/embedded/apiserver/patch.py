"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386). Strategic merge patch lives in `strategic`."""

from typing import Any, cast

from egpu.embedded.apiserver.objects import Json, as_list, copy

OPERATIONS_LIMIT = 10_000
"""Operations in one JSON patch, as the real server bounds them."""


class PatchFailed(ValueError):
    """The patch does not apply to this object; `malformed` when it would apply to none."""

    def __init__(self, message: str, *, malformed: bool = False) -> None:
        super().__init__(message)
        self.malformed = malformed


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply an RFC 7386 patch and return the result; neither argument is changed at its top level."""
    if not isinstance(patch, dict):
        return patch
    result: Json = dict(cast(Json, target)) if isinstance(target, dict) else {}
    for key, value in cast(Json, patch).items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(target: Json, operations: object) -> Any:
    """Apply an RFC 6902 patch to a copy of `target`. Raises PatchFailed; then nothing has changed."""
    if not isinstance(operations, list):
        raise PatchFailed("a JSON patch is a list of operations", malformed=True)
    steps = as_list(cast(object, operations))
    if len(steps) > OPERATIONS_LIMIT:
        raise PatchFailed(f"the patch has more than {OPERATIONS_LIMIT} operations", malformed=True)
    document: Json = {"": copy(target)}  # the root sits under a key, so that it can be replaced like anything else
    for operation in steps:
        if not isinstance(operation, dict):
            raise PatchFailed(f"not an operation: {operation!r}", malformed=True)
        _apply(document, cast(Json, operation))
    return document[""]


def _apply(document: Json, operation: Json) -> None:
    name = operation.get("op")
    path = _pointer(operation.get("path"))
    match name:
        case "add":
            _add(document, path, _value(operation))
        case "remove":
            _remove(document, path)
        case "replace":
            _get(document, path)
            _set(document, path, _value(operation))
        case "test":
            if _get(document, path) != _value(operation):
                raise PatchFailed(f"testing value {operation['path']} failed")
        case "move":
            source = _pointer(operation.get("from"))
            _add(document, path, _remove(document, source))
        case "copy":
            source = _pointer(operation.get("from"))
            _add(document, path, copy({"value": _get(document, source)})["value"])
        case _:
            raise PatchFailed(f"unknown operation {name!r}", malformed=True)


def _value(operation: Json) -> Any:
    if "value" not in operation:
        raise PatchFailed(f"operation {operation.get('op')!r} lacks a value", malformed=True)
    return operation["value"]


def _pointer(text: object) -> list[str]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise PatchFailed(f"not a JSON pointer: {text!r}", malformed=True)
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")]


def _index(items: list[Any], key: str, *, inserting: bool) -> int:
    if inserting and key == "-":
        return len(items)
    limit = len(items) + (1 if inserting else 0)
    if not key.isdecimal() or int(key) >= limit:
        raise PatchFailed(f"no element {key!r} in an array of {len(items)}")
    return int(key)


def _step(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        tree = cast(Json, value)
        if key in tree:
            return tree[key]
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        return items[_index(items, key, inserting=False)]
    raise PatchFailed(f"the object has nothing at {key!r}")


def _get(document: Any, path: list[str]) -> Any:
    for key in path:
        document = _step(document, key)
    return document


def _add(document: Json, path: list[str], value: Any) -> None:
    parent = _get(document, path[:-1])
    if isinstance(parent, list):
        items = cast("list[Any]", parent)
        items.insert(_index(items, path[-1], inserting=True), value)
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise PatchFailed(f"nothing can be added below a {type(parent).__name__}")


def _set(document: Json, path: list[str], value: Any) -> None:
    parent = _get(document, path[:-1])
    if isinstance(parent, list):
        items = cast("list[Any]", parent)
        items[_index(items, path[-1], inserting=False)] = value
    else:
        parent[path[-1]] = value


def _remove(document: Json, path: list[str]) -> Any:
    value = _get(document, path)
    parent = _get(document, path[:-1])
    if isinstance(parent, list):
        items = cast("list[Any]", parent)
        return items.pop(_index(items, path[-1], inserting=False))
    del parent[path[-1]]
    return value
