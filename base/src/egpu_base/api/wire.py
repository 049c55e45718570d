"""Names and times in JSON, and the base of every object that has metadata."""

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

_ACRONYMS: Final = {"mib": "MiB", "gpu": "GPU", "gpus": "GPUs", "ip": "IP", "ips": "IPs", "id": "ID", "uuids": "UUIDs"}


def camel(name: str) -> str:
    """Return a name in camel case: `physical_gpu` → `physicalGPU`, `memory_mib` → `memoryMiB`."""
    head, *rest = name.split("_")
    return head + "".join(_ACRONYMS.get(part, part.capitalize()) for part in rest)


def go(name: str) -> str:
    """Return a name as Go structs without JSON tags have it: `node_names` → `NodeNames`, `pod_uid` → `PodUID`."""
    return "".join("UID" if part == "uid" else part.capitalize() for part in name.split("_"))


def rfc3339(seconds: float) -> str:
    """Return seconds since the epoch as Kubernetes writes times: UTC, whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(timestamp: str | None, now: datetime) -> float:
    """Return the seconds from a time to `now`, never below 0; 0 without a time. Raises ValueError."""
    if not timestamp:
        return 0.0
    moment = datetime.fromisoformat(timestamp)
    return max(0.0, (now - (moment if moment.tzinfo else moment.replace(tzinfo=UTC))).total_seconds())


_encoder: Final = msgspec.msgpack.Encoder()


def packed_bytes(part: Any) -> int:
    """Return the size of a part of an object in MessagePack. In memory it takes up to ten times as much."""
    return len(_encoder.encode(part))


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, rename=camel):
    """The base of what we exchange with an API server: immutable, camelCase, unknown fields ignored, defaults omitted.
    Objects read from JSON have no cycles, so the garbage collector can skip them."""


class Resource(msgspec.Struct, frozen=True):
    """The location of a kind: `/apis/{group}/{version}[/namespaces/NS]/{plural}` (`/api/v1/…` for the core group)."""

    group: str
    version: str
    plural: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


def replacing(old: object, new: object) -> object:
    """Return `new` as a merge patch (RFC 7386) for the present `old`: fields that only `old` has are null. Without it a
    field that is omitted at its default would keep its old value."""
    if not all(isinstance(one, dict | msgspec.Struct) for one in (old, new)):
        return new
    before, after = _fields(old), _fields(new)
    return {name: replacing(before.get(name), after.get(name)) for name in {**before, **after}}


def _fields(value: object) -> dict[str, object]:
    return msgspec.convert(msgspec.to_builtins(value), dict[str, object])


def encode(value: object) -> bytes:
    """Return JSON with keys in declaration order."""
    return msgspec.json.encode(value)
