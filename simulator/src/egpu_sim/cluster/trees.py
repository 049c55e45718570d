"""Objects as plain JSON trees, and functions for them.

Objects are never decoded into classes, as a server keeps unknown fields of other people's kinds. Never mutate a stored
tree: change a copy.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

import msgspec

from egpu_base.api.wire import rfc3339, seconds_since

Json: TypeAlias = dict[str, Any]
"""A decoded JSON object."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def encode(value: object) -> bytes:
    return _encoder.encode(value)


def decode(raw: bytes) -> Any:
    """Decode bytes to a JSON tree. Raises msgspec.DecodeError."""
    return _decoder.decode(raw)


def copy(obj: Json) -> Json:
    """Copy deeply (a round trip through JSON is faster than `copy.deepcopy`)."""
    return _decoder.decode(_encoder.encode(obj))


def as_object(value: object) -> Json:
    """Return `value` if it is a JSON object, else an empty one."""
    return cast(Json, value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return `value` if it is a JSON array, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def metadata(obj: Json) -> Json:
    """Return the object's metadata, created if absent, so that the caller may write to it."""
    found = obj.get("metadata")
    if not isinstance(found, dict):
        found = obj["metadata"] = {}
    return cast(Json, found)


def name_of(obj: Json) -> str:
    return str(as_object(obj.get("metadata")).get("name") or "")


def namespace_of(obj: Json) -> str:
    return str(as_object(obj.get("metadata")).get("namespace") or "")


def uid_of(obj: Json) -> str:
    return str(as_object(obj.get("metadata")).get("uid") or "")


def labels_of(obj: Json) -> Mapping[str, str]:
    return as_object(as_object(obj.get("metadata")).get("labels"))


def at(obj: Json, *path: str) -> Any:
    """Return the value under a path of keys, or None when any of them is absent."""
    value: Any = obj
    for key in path:
        if not isinstance(value, dict):
            return None
        value = cast(Json, value).get(key)
    return value


def objects_at(obj: Json, *path: str) -> list[Json]:
    """Return the JSON objects in the array under a path, without other values."""
    return [cast(Json, item) for item in as_list(at(obj, *path)) if isinstance(item, dict)]


def now() -> str:
    """Return the time as the API writes it."""
    return rfc3339(time.time())


def age_seconds(timestamp: object) -> float | None:
    """Return the age of an API timestamp in seconds, or None for other values."""
    try:
        return seconds_since(timestamp, datetime.now(UTC)) if isinstance(timestamp, str) and timestamp else None
    except ValueError:
        return None
