"""Kubernetes' ResourceQuota, as far as this project reads it."""

from typing import ClassVar

from msgspec import field

from egpu_base.api.objects import Object
from egpu_base.api.quantities import Quantity
from egpu_base.api.wire import Resource, Wire


class ResourceQuotaStatus(Wire, frozen=True, kw_only=True):
    hard: dict[str, Quantity] | None = None
    used: dict[str, Quantity] | None = None


class ResourceQuota(Object, frozen=True, kw_only=True, tag_field="kind", tag="ResourceQuota"):
    resource: ClassVar[Resource] = Resource("", "v1", "resourcequotas", namespaced=True)

    api_version: str = field(default_factory=lambda: "v1")
    status: ResourceQuotaStatus = field(default_factory=ResourceQuotaStatus)
