"""The part that all kinds of object share: metadata, references to other objects, conditions."""

import re
from typing import ClassVar, Final, Literal

from msgspec import field

from egpu_base.api.wire import Resource, Wire

_LONGEST_NAME: Final = 253
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class OwnerReference(Wire, frozen=True, kw_only=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Wire, frozen=True, kw_only=True):
    """The part of Kubernetes' metadata that we read or write."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[OwnerReference] | None = None


def is_object_name(text: str) -> bool:
    """Return whether an object can be called so (a lowercase RFC 1123 subdomain)."""
    return len(text) <= _LONGEST_NAME and _NAME.fullmatch(text) is not None


def key_of(name: str, namespace: str) -> str:
    """Return `namespace/name`, or `name` without a namespace."""
    return f"{namespace}/{name}" if namespace else name


class Object(Wire, frozen=True, kw_only=True):
    """A Kubernetes object. `kind` and `apiVersion` are always written; subclasses say which resource they are."""

    resource: ClassVar[Resource]

    metadata: ObjectMeta = field(default_factory=ObjectMeta)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` for kinds without a namespace."""
        return key_of(self.metadata.name, self.metadata.namespace)

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}


class ObjectReference(Wire, frozen=True, kw_only=True):
    api_version: str = ""
    """The API version of the object."""
    kind: str = ""
    """The kind of the object."""
    namespace: str = ""
    """The namespace of the object."""
    name: str = ""
    """The name of the object."""
    uid: str = ""
    """The UID of the object."""


class Condition(Wire, frozen=True, kw_only=True):
    type: str
    """The subject of the condition, such as CardsHealthy."""
    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""
    reason: str = ""
    """The reason, as one word."""
    message: str = ""
    """The reason, as a sentence."""
    last_transition_time: str | None = None
    """The time when `status` last changed."""
