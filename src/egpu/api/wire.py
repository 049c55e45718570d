"""How names and times are written in JSON, and the base of every object that has metadata."""

from datetime import UTC, datetime
from typing import Final

import msgspec

_ACRONYMS: Final = {"mib": "MiB", "gpu": "GPU", "gpus": "GPUs", "ip": "IP", "ips": "IPs", "id": "ID", "uuids": "UUIDs"}


def camel(name: str) -> str:
    """`physical_gpu` → `physicalGPU`, `memory_mib` → `memoryMiB`, `node_name` → `nodeName`."""
    head, *rest = name.split("_")
    return head + "".join(_ACRONYMS.get(part, part.capitalize()) for part in rest)


def go(name: str) -> str:
    """`node_names` → `NodeNames`, `pod_uid` → `PodUID`: Go structs without JSON tags."""
    return "".join("UID" if part == "uid" else part.capitalize() for part in name.split("_"))


def rfc3339(seconds: float) -> str:
    """Seconds since the epoch as Kubernetes writes times: UTC, whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(timestamp: str | None, now: datetime) -> float:
    """Seconds from such a time to `now`, never below 0; 0 where there is none. Raises ValueError for what is none."""
    if not timestamp:
        return 0.0
    moment = datetime.fromisoformat(timestamp)
    return max(0.0, (now - (moment if moment.tzinfo else moment.replace(tzinfo=UTC))).total_seconds())


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, rename=camel):
    """Base of what we exchange with an API server: immutable, camelCase, unknown fields ignored, defaults omitted. What
    was read from JSON has no cycles, so the garbage collector need not look for any."""


class Resource(msgspec.Struct, frozen=True):
    """Where a kind lives: `/apis/{group}/{version}[/namespaces/NS]/{plural}` (`/api/v1/…` for the core group)."""

    group: str
    version: str
    plural: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


def replacing(old: object, new: object) -> object:
    """`new` as a merge patch (RFC 7386) on what is now `old`: what only `old` has is null. Without it a field that is
    not written because it is at its default would stay as it was."""
    if not all(isinstance(one, dict | msgspec.Struct) for one in (old, new)):
        return new
    before, after = _fields(old), _fields(new)
    return {name: replacing(before.get(name), after.get(name)) for name in {**before, **after}}


def _fields(value: object) -> dict[str, object]:
    return msgspec.convert(msgspec.to_builtins(value), dict[str, object])


def encode(value: object) -> bytes:
    """JSON, keys in declaration order."""
    return msgspec.json.encode(value)
