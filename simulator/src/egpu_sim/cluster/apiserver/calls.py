"""One API call, parsed: a user, a verb, an object, and options."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from egpu_base.errors import RequestRefused
from egpu_sim.cluster.apiserver import status
from egpu_sim.cluster.apiserver.kinds.resources import Resource
from egpu_sim.cluster.apiserver.status import bad_request
from egpu_sim.cluster.apiserver.storage.store import Key
from egpu_sim.cluster.trees import Json


@dataclass(frozen=True)
class User:
    """The owner of a bearer token."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)
    extra: tuple[tuple[str, str], ...] = ()
    """More about the user, each key with its one value (`UserInfo.extra` on the wire)."""

    def info(self) -> Json:
        """Return the user as `authentication.k8s.io` writes it."""
        extra = {"extra": {key: [value] for key, value in self.extra}} if self.extra else {}
        return {"username": self.name, "groups": list(self.groups), **extra}


@dataclass
class Call:
    """A request on a resource. `warnings` go into `Warning` headers."""

    verb: str
    resource: Resource
    user: User
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    warnings: list[str] = field(default_factory=list[str])
    manager: str = "unknown"
    """The owner of the fields that the request sets (`metadata.managedFields`)."""

    @property
    def key(self) -> Key:
        return (self.namespace if self.resource.namespaced else "", self.name)

    @property
    def dry_run(self) -> bool:
        """True if nothing is to be stored. Raises RequestRefused for any value but `All`."""
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
        """Return whether a truth value in the query is set."""
        return self.query.get(flag, "") in ("true", "1")


@dataclass(frozen=True)
class Write:
    """A write to be admitted: the objects are in the served version of the call."""

    call: Call
    operation: str
    obj: Json | None
    old: Json | None
    options: Json
