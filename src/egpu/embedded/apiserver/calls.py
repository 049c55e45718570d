"""One API call, parsed: who asks for what, and how."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from egpu.embedded.apiserver import status
from egpu.embedded.apiserver.objects import Json
from egpu.embedded.apiserver.resources import Resource
from egpu.embedded.apiserver.status import bad_request
from egpu.embedded.apiserver.store import Key
from egpu.errors import RequestRefused


@dataclass(frozen=True)
class User:
    """Who a bearer token belongs to."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)
    extra: tuple[tuple[str, str], ...] = ()
    """What else is known of the user, each key with its one value (`UserInfo.extra` on the wire)."""

    def info(self) -> Json:
        """As `authentication.k8s.io` writes it."""
        extra = {"extra": {key: [value] for key, value in self.extra}} if self.extra else {}
        return {"username": self.name, "groups": list(self.groups), **extra}


@dataclass
class Call:
    """A request on a resource. `warnings` are answered in `Warning` headers."""

    verb: str
    resource: Resource
    user: User
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    warnings: list[str] = field(default_factory=list[str])
    manager: str = "unknown"
    """Whose the fields are that the request sets (`metadata.managedFields`)."""

    @property
    def key(self) -> Key:
        return (self.namespace if self.resource.namespaced else "", self.name)

    @property
    def dry_run(self) -> bool:
        """Raises RequestRefused for anything but `All`."""
        value = self.query.get("dryRun", "")
        if value not in ("", "All"):
            raise bad_request(f"dryRun: unsupported value {value!r}: supported values: All")
        return value == "All"

    @property
    def field_validation(self) -> str:
        value = self.query.get("fieldValidation") or "Warn"
        if value not in ("Strict", "Warn", "Ignore"):
            raise bad_request(f"fieldValidation: unsupported value {value!r}: supported values: Ignore, Strict, Warn")
        return value

    def not_found(self) -> RequestRefused:
        return status.not_found(self.resource.group, self.resource.plural, self.name)

    def modified(self) -> RequestRefused:
        return status.modified(self.resource.group, self.resource.plural, self.name)

    def conflict(self, message: str) -> RequestRefused:
        return status.conflict(self.resource.group, self.resource.plural, self.name, message)

    def asks(self, flag: str) -> bool:
        """Whether a truth value in the query is set."""
        return self.query.get(flag, "") in ("true", "1")


@dataclass(frozen=True)
class Write:
    """A write to be admitted: the objects are in the served version of the call."""

    call: Call
    operation: str
    obj: Json | None
    old: Json | None
    options: Json
