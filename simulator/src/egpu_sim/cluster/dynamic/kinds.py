"""The kinds of resource.k8s.io/v1: metadata typed, spec and status as they are."""

from typing import Any, ClassVar, Final

from msgspec import field

from egpu_base.api.objects import Object
from egpu_base.api.wire import Resource
from egpu_sim.cluster.trees import Json, as_object, at, objects_at

GROUP = "resource.k8s.io"
FINALIZER = "resource.kubernetes.io/delete-protection"
"""Keeps a claim with an allocation."""
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a generated claim: its name in the pod."""

RESERVED_LIMIT: Final = 256
"""Users of one claim."""


class ResourceClaim(Object, frozen=True, kw_only=True, tag_field="kind", tag="ResourceClaim"):
    resource: ClassVar[Resource] = Resource(GROUP, "v1", "resourceclaims", namespaced=True)

    spec: dict[str, Any] = field(default_factory=dict[str, Any])
    status: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def allocation(self) -> Json | None:
        found = self.status.get("allocation")
        return None if found is None else as_object(found)

    @property
    def results(self) -> list[Json]:
        """The allocated devices."""
        return objects_at(self.status, "allocation", "devices", "results")

    @property
    def reserved_for(self) -> list[Json]:
        return objects_at(self.status, "reservedFor")


class ResourceClaimTemplate(Object, frozen=True, kw_only=True, tag_field="kind", tag="ResourceClaimTemplate"):
    resource: ClassVar[Resource] = Resource(GROUP, "v1", "resourceclaimtemplates", namespaced=True)

    spec: dict[str, Any] = field(default_factory=dict[str, Any])


class DeviceClass(Object, frozen=True, kw_only=True, tag_field="kind", tag="DeviceClass"):
    resource: ClassVar[Resource] = Resource(GROUP, "v1", "deviceclasses", namespaced=False)

    spec: dict[str, Any] = field(default_factory=dict[str, Any])


class ResourceSlice(Object, frozen=True, kw_only=True, tag_field="kind", tag="ResourceSlice"):
    resource: ClassVar[Resource] = Resource(GROUP, "v1", "resourceslices", namespaced=False)

    spec: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def driver(self) -> str:
        return str(self.spec.get("driver"))

    @property
    def pool(self) -> str:
        return str(at(self.spec, "pool", "name"))

    @property
    def generation(self) -> int:
        return int(at(self.spec, "pool", "generation") or 0)
