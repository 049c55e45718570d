"""The part of Kubernetes' dynamic resource allocation (resource.k8s.io/v1) that we read or write.

A driver publishes devices in ResourceSlices; users ask for them in ResourceClaims by DeviceClass; the scheduler writes
the allocation into the claim's status.
"""

from typing import Any, ClassVar, Literal

from msgspec import field

from egpu_base.api.objects import Object
from egpu_base.api.quantities import Quantity
from egpu_base.api.wire import Resource, Wire

GROUP = "resource.k8s.io"
VERSION = "v1"

# --- ResourceSlice --------------------------------------------------------------------------------------------------


class DeviceAttribute(Wire, frozen=True, kw_only=True):
    """One value; exactly one field is set."""

    number: int | None = field(default=None, name="int")
    flag: bool | None = field(default=None, name="bool")
    string: str | None = None
    version: str | None = None


class CapacityRange(Wire, frozen=True, kw_only=True):
    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityRequestPolicy(Wire, frozen=True, kw_only=True):
    default: Quantity | None = None
    valid_range: CapacityRange | None = None


class DeviceCapacity(Wire, frozen=True, kw_only=True):
    value: Quantity
    request_policy: CapacityRequestPolicy | None = None


class DeviceTaint(Wire, frozen=True, kw_only=True):
    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class Device(Wire, frozen=True, kw_only=True):
    name: str
    attributes: dict[str, DeviceAttribute] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    taints: list[DeviceTaint] | None = None
    allow_multiple_allocations: bool | None = None


class ResourcePool(Wire, frozen=True, kw_only=True):
    name: str
    generation: int
    resource_slice_count: int


class ResourceSliceSpec(Wire, frozen=True, kw_only=True):
    driver: str
    pool: ResourcePool
    node_name: str = ""
    devices: list[Device] | None = None


class ResourceSlice(Object, frozen=True, kw_only=True, tag_field="kind", tag="ResourceSlice"):
    resource: ClassVar[Resource] = Resource(GROUP, VERSION, "resourceslices", namespaced=False)

    api_version: str = field(default_factory=lambda: f"{GROUP}/{VERSION}")
    spec: ResourceSliceSpec


# --- ResourceClaim --------------------------------------------------------------------------------------------------


class DeviceToleration(Wire, frozen=True, kw_only=True):
    """Fields are empty where they match all."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: DeviceTaint) -> bool:
        if (self.effect and self.effect != taint.effect) or (self.key and self.key != taint.key):
            return False
        return self.operator == "Exists" or self.value == taint.value


class OpaqueConfiguration(Wire, frozen=True, kw_only=True):
    driver: str
    parameters: dict[str, Any] | None = None


class AllocationConfiguration(Wire, frozen=True, kw_only=True):
    """Configuration of a class or of the claim; no `requests` means all."""

    source: Literal["FromClass", "FromClaim"] = "FromClaim"
    requests: list[str] | None = None
    opaque: OpaqueConfiguration | None = None


class AllocatedDevice(Wire, frozen=True, kw_only=True):
    """A device that a request got. `request` may have the name of a subrequest after a slash."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str = field(default="", name="shareID")
    consumed_capacity: dict[str, Quantity] | None = None
    tolerations: list[DeviceToleration] | None = None
    """Those of the request, if kube-scheduler allocated the device."""


class DeviceAllocation(Wire, frozen=True, kw_only=True):
    results: list[AllocatedDevice] | None = None
    config: list[AllocationConfiguration] | None = None


class ClaimAllocation(Wire, frozen=True, kw_only=True):
    devices: DeviceAllocation = field(default_factory=DeviceAllocation)
    node_selector: dict[str, Any] | None = None
    allocation_timestamp: str | None = None


class ConsumerReference(Wire, frozen=True, kw_only=True):
    resource: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = ""


class CapacityRequirements(Wire, frozen=True, kw_only=True):
    requests: dict[str, Quantity] | None = None


class CelSelector(Wire, frozen=True, kw_only=True):
    expression: str


class DeviceSelector(Wire, frozen=True, kw_only=True):
    cel: CelSelector | None = None


class ExactDeviceRequest(Wire, frozen=True, kw_only=True):
    device_class_name: str = ""
    selectors: list[DeviceSelector] | None = None
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] | None = None
    capacity: CapacityRequirements | None = None


class DeviceRequest(Wire, frozen=True, kw_only=True):
    """One request: `exactly`, or the first possible of several."""

    name: str
    exactly: ExactDeviceRequest | None = None
    first_available: list[dict[str, Any]] | None = None


class ClaimConfiguration(Wire, frozen=True, kw_only=True):
    requests: list[str] | None = None
    opaque: OpaqueConfiguration | None = None


class DeviceClaim(Wire, frozen=True, kw_only=True):
    requests: list[DeviceRequest] | None = None
    constraints: list[dict[str, Any]] | None = None
    config: list[ClaimConfiguration] | None = None


class ResourceClaimSpec(Wire, frozen=True, kw_only=True):
    devices: DeviceClaim = field(default_factory=DeviceClaim)


class ResourceClaimStatus(Wire, frozen=True, kw_only=True):
    allocation: ClaimAllocation | None = None
    reserved_for: list[ConsumerReference] | None = None
    devices: list[dict[str, Any]] | None = None
    """What drivers report of allocated devices, those of other drivers too."""


class ResourceClaim(Object, frozen=True, kw_only=True, tag_field="kind", tag="ResourceClaim"):
    resource: ClassVar[Resource] = Resource(GROUP, VERSION, "resourceclaims", namespaced=True)

    api_version: str = field(default_factory=lambda: f"{GROUP}/{VERSION}")
    spec: ResourceClaimSpec = field(default_factory=ResourceClaimSpec)
    status: ResourceClaimStatus = field(default_factory=ResourceClaimStatus)


class ResourceClaimTemplateSpec(Wire, frozen=True, kw_only=True):
    spec: ResourceClaimSpec = field(default_factory=ResourceClaimSpec)


class ResourceClaimTemplate(Object, frozen=True, kw_only=True, tag_field="kind", tag="ResourceClaimTemplate"):
    resource: ClassVar[Resource] = Resource(GROUP, VERSION, "resourceclaimtemplates", namespaced=True)

    api_version: str = field(default_factory=lambda: f"{GROUP}/{VERSION}")
    spec: ResourceClaimTemplateSpec = field(default_factory=ResourceClaimTemplateSpec)


# --- DeviceClass ----------------------------------------------------------------------------------------------------


class ClassConfiguration(Wire, frozen=True, kw_only=True):
    opaque: OpaqueConfiguration | None = None


class DeviceClassSpec(Wire, frozen=True, kw_only=True):
    selectors: list[DeviceSelector] | None = None
    config: list[ClassConfiguration] | None = None


class DeviceClass(Object, frozen=True, kw_only=True, tag_field="kind", tag="DeviceClass"):
    resource: ClassVar[Resource] = Resource(GROUP, VERSION, "deviceclasses", namespaced=False)

    api_version: str = field(default_factory=lambda: f"{GROUP}/{VERSION}")
    spec: DeviceClassSpec = field(default_factory=DeviceClassSpec)
