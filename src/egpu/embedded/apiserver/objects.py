"""The shape of everything the server stores: plain JSON trees, and the few words to speak about them.

Objects are never decoded into classes: a server that keeps unknown fields of other people's kinds has no use for them.
A stored tree is never mutated; whoever wants to change one works on a copy.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

import msgspec

from egpu.api.wire import rfc3339, seconds_since

Json: TypeAlias = dict[str, Any]
"""A decoded JSON object."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def encode(value: object) -> bytes:
    """Encode a JSON tree."""
    return _encoder.encode(value)


def decode(raw: bytes) -> Any:
    """Decode bytes to a JSON tree. Raises msgspec.DecodeError."""
    return _decoder.decode(raw)


def copy(obj: Json) -> Json:
    """Copy deeply (a round trip through JSON is faster than `copy.deepcopy`)."""
    return _decoder.decode(_encoder.encode(obj))


def as_object(value: object) -> Json:
    """`value` if it is a JSON object, else an empty one."""
    return cast(Json, value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """`value` if it is a JSON array, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def metadata(obj: Json) -> Json:
    """The object's metadata; created when absent, so that the result may be written to."""
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
    """The value under a path of keys, or None when any of them is absent."""
    value: Any = obj
    for key in path:
        if not isinstance(value, dict):
            return None
        value = cast(Json, value).get(key)
    return value


def objects_at(obj: Json, *path: str) -> list[Json]:
    """The JSON objects in the array under a path; what is not an object is left out."""
    return [cast(Json, item) for item in as_list(at(obj, *path)) if isinstance(item, dict)]


def now() -> str:
    """The time as the API writes it."""
    return rfc3339(time.time())


def age_seconds(timestamp: object) -> float | None:
    """Age of an API timestamp in seconds, or None when it is not one."""
    try:
        return seconds_since(timestamp, datetime.now(UTC)) if isinstance(timestamp, str) and timestamp else None
    except ValueError:
        return None
