# ruff: noqa: RUF012 - msgspec gives every object its own copy of an empty default
"""The three kinds of the group: ElasticGPU (like a PV), ElasticGPUClaim (a PVC), ElasticGPUClass (a StorageClass).

Immutable msgspec structs. Reading ignores unknown fields. The spellings of the design articles and of the upstream
project are read, and never written: see `ElasticGPUClaimSpec.class_name` and `ElasticGPUClass.binding_mode`.
"""

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, field

from egpu.api import names
from egpu.api.allocation import ContainerAllocation
from egpu.api.mig import InstancePlace, Mig
from egpu_base.api.objects import Condition, Object, ObjectReference
from egpu_base.api.quantities import Quantity
from egpu_base.api.wire import Resource, Wire

# --- ElasticGPU -----------------------------------------------------------------------------------------------------


class Link(Wire, frozen=True, kw_only=True):
    """The connection to another card of the node: NVLink, or a `kind` of nvidia-smi's topology."""

    uuid: str
    """The UUID of the other card."""
    kind: str
    """NVLink, PIX, PXB, PHB, NODE or SYS."""


class PhysicalGPU(Wire, frozen=True, kw_only=True):
    """A card of this node, as its driver reports it."""

    uuid: Annotated[str, Meta(min_length=1, max_length=128)]
    """The permanent identity of the card."""
    index: Annotated[int, Meta(ge=0)]
    """The driver's number of the card. A reboot may change it."""
    minor: Annotated[int, Meta(ge=0)]
    """The N of the card's device file, /dev/nvidiaN."""
    model: str = ""
    """The driver's name of the card."""
    memory_mib: Annotated[int, Meta(ge=1, le=names.MAX_MEMORY_MIB)] = 1
    """The whole memory of the card, in MiB."""
    compute_capability: str = ""
    """The compute capability, such as 8.0."""
    tflops: dict[str, float] = {}
    """TFLOPS by precision: {"fp32": 19.5, "fp16": 312}."""
    numa: int = -1
    """The NUMA node; -1 on a machine without NUMA."""
    links: list[Link] = []
    """Connections to the other cards of the node."""
    memory_isolation: str = ""
    """"driver" if the driver can limit memory by control group; otherwise empty."""
    mps: str = ""
    """"ready" if the agent can run an MPS server for the card; otherwise the reason why it cannot."""
    allocator: str = ""
    """"dra" if only kube-scheduler gives out parts of the card, to claims of resource.k8s.io; "priced" if the extender
    gives them to such claims, too; "other" if another program gives out the card, too, so that it takes no new work;
    otherwise empty."""
    mig: Mig | None = None
    """The possible and existing MIG instances, while the card is in MIG mode. Only instances can be used then."""


class Slice(Wire, frozen=True, kw_only=True):
    """A share of a card that is reserved for a claim."""

    provisioner: str
    """The technology that limits programs to the slice."""
    mode: Literal["exclusive", "shared"]
    """exclusive: a whole card; shared: a part of one."""
    uuid: str
    """The UUID of the card."""
    index: int
    """The number of the card when the slice was created."""
    minor: int
    """The N of the card's device file, /dev/nvidiaN."""
    core: Annotated[int, Meta(ge=0, le=100)] = 0
    """Percent of the card's compute. 0: no compute share of its own."""
    memory_mib: Annotated[int, Meta(ge=0)] = 0
    """MiB of the card's memory."""
    resident_mib: Annotated[int, Meta(ge=0)] = 0
    """MiB of `memoryMiB` that have their own room on the card; the rest shares room with others. 0: all of it."""
    model: str = ""
    """The model of the card."""
    class_name: str = ""
    """The class of the claim."""
    alike: str = ""
    """A property that all slices of the card must share, in the technology's own words; empty for none."""
    instance: InstancePlace | None = None
    """The MIG instance of the slice, if it is one."""


ReclaimPolicy = Literal["Retain", "Delete"]
BindingMode = Literal["Immediate", "WaitForFirstConsumer"]
GPUPhase = Literal["Pending", "Available", "Bound", "Released", "Failed"]
ClaimPhase = Literal["Pending", "Bound", "Lost"]


class ElasticGPUSpec(Wire, frozen=True, kw_only=True):
    """A card (`physicalGPU`) or a share of one (`slice`). Exactly one of the two is set."""

    node_name: str = ""
    """The node that has the card."""
    capacity: dict[str, Quantity] = {}
    """The amounts that can be allocated, by resource name."""
    physical_gpu: PhysicalGPU | None = None
    """Set if this object is a card."""
    slice: Slice | None = None
    """Set if this object is a share of a card."""
    claim_ref: ObjectReference | None = None
    """The claim of the slice."""
    reclaim_policy: ReclaimPolicy = "Delete"
    """Keep (Retain) or delete the slice when its claim is deleted."""
    unschedulable: bool = False
    """Keep new work off the card (egpu cordon)."""


class SliceInForce(Wire, frozen=True, kw_only=True):
    """The size of a resized slice that its node has put in force."""

    pod: str
    """The UID of the pod."""
    container: str
    """The name of the container."""
    revision: int
    """The revision of the allocation that is in force."""
    over_mib: int = 0
    """MiB that the container still uses beyond it."""


class ElasticGPUStatus(Wire, frozen=True, kw_only=True):
    """The state of a card or slice. The card's agent writes `healthy`, `reason`, `message` and `inForce`; the scheduler
    extender writes `given` and `heldBy`."""

    phase: GPUPhase | None = None
    """A card is Available while nothing of it is allocated, then Bound, and Failed while unhealthy."""
    healthy: bool | None = None
    """The health of the card, reported by its node's agent."""
    reason: str = ""
    """The reason why the card is unhealthy, as one word."""
    message: str = ""
    """The reason why the card is unhealthy, as a sentence."""
    given: dict[str, Quantity] = {}
    """The allocated part of capacity, by resource name."""
    held_by: str = ""
    """The pods and claims that hold a part of the card."""
    in_force: list[SliceInForce] = []
    """The sizes in force of slices that were resized, written by the agent."""


class ElasticGPU(Object, frozen=True, kw_only=True, tag_field="kind", tag="ElasticGPU"):
    """A card, published by its node's agent (named `card_name(node, uuid)`), or a slice of one, held for a claim."""

    resource: ClassVar[Resource] = Resource(names.GROUP, names.STORAGE_VERSION, "elasticgpus", namespaced=False)

    api_version: str = field(default_factory=lambda: names.API_VERSION)
    spec: ElasticGPUSpec = field(default_factory=ElasticGPUSpec)
    status: ElasticGPUStatus = field(default_factory=ElasticGPUStatus)

    @property
    def healthy(self) -> bool:
        """True until its agent reports that the card is unhealthy."""
        return self.status.healthy is not False


def card_name(node: str, uuid: str) -> str:
    """Return the name of a card's object: the node and the first eight hex digits of the UUID."""
    hexadecimal = "".join(c for c in uuid.lower().removeprefix("gpu-").removeprefix("mig-") if c in "0123456789abcdef")
    return f"{node}-{hexadecimal[:8]}"


# --- ElasticGPUClaim ------------------------------------------------------------------------------------------------


class ClaimResources(Wire, frozen=True, kw_only=True):
    requests: dict[str, Quantity] = {}
    """The requested amounts by resource name, such as elasticgpu.io/gpu-core (percent of a card) and
    elasticgpu.io/gpu-memory (MiB)."""
    limits: dict[str, Quantity] = {}
    """Percent of a card up to which idle compute may be used. All else must equal `requests` where both name it."""


class CardExpression(Wire, frozen=True, kw_only=True):
    """One requirement of a card."""

    key: Annotated[str, Meta(max_length=63)]
    """model, modelText, memory, computeCapability, tflops, numa or linkDomain."""
    operator: Literal["In", "NotIn", "Gt", "Lt", "Exists", "DoesNotExist"]
    """A match operator, as in Kubernetes."""
    values: Annotated[list[Quantity], Meta(max_length=64)] = []
    """The values to compare with: one for Gt and Lt, none for Exists and DoesNotExist."""


class CardSelector(Wire, frozen=True, kw_only=True):
    """Requirements that each card of the claim must meet."""

    match_expressions: Annotated[list[CardExpression], Meta(max_length=16)] = []
    """The requirements. A card must meet all of them."""


class ElasticGPUClaimSpec(Wire, frozen=True, kw_only=True):
    """The requested amounts, the class that provides them, and which cards to use."""

    resources: ClaimResources = field(default_factory=ClaimResources)
    """The requested amounts."""
    selector: CardSelector | None = None
    """Requirements that each card must meet."""
    card_preference: Literal["strongest", "weakest"] | None = None
    """The cards to prefer among those that fit."""
    elastic_gpu_class_name: str = field(default="", name="elasticGPUClassName")
    """The name of the class, which selects the technology. Cannot change."""
    egpu_class_name: str = field(default="", name="egpuClassName")
    """Another spelling of elasticGPUClassName. Set only one of them."""
    storage_class_name: str = field(default="", name="storageClassName")
    """Another spelling of elasticGPUClassName. Set only one of them."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The distinct class names under the three spellings. Admission refuses more than one."""
        spellings = (self.elastic_gpu_class_name, self.egpu_class_name, self.storage_class_name)
        return tuple(dict.fromkeys(name for name in spellings if name))

    @property
    def class_name(self) -> str:
        """The class name under any spelling, or empty."""
        return next(iter(self.class_names), "")


class ClaimAllocation(Wire, frozen=True, kw_only=True):
    """The cards of a bound claim: the node, and the shares exactly as a container gets them."""

    node: str
    """The node where pods that use the claim run."""
    container: ContainerAllocation
    """The allocation of a container that uses the claim."""


CARDS_PRESENT: Final = "CardsPresent"
"""The condition that is False while a claim is Lost, and says why. Written by the controller."""


class ElasticGPUClaimStatus(Wire, frozen=True, kw_only=True):
    """The state of a claim. The scheduler extender writes `allocation`, which alone decides what is reserved. The
    controller creates the slices and writes the rest."""

    phase: ClaimPhase | None = None
    """Pending until cards are found, Bound afterwards, Lost when they are gone."""
    allocation: ClaimAllocation | None = None
    """The cards of the claim, written by the scheduler extender."""
    bound_gpus: list[str] = []
    """The names of the claim's slices."""
    used_by: list[str] = []
    """The containers that use the claim, as pod/container."""
    capacity: dict[str, Quantity] = {}
    """The allocated amounts, by resource name."""
    qos: str = ""
    """The quality of service of the claim's compute: Guaranteed, Burstable or BestEffort; empty without cards."""
    conditions: list[Condition] = []
    """Further conditions of the claim."""

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of that type, if there is one."""
        return next((one for one in self.conditions if one.type == kind), None)


class ElasticGPUClaim(Object, frozen=True, kw_only=True, tag_field="kind", tag="ElasticGPUClaim"):
    """A user's request for a slice or for cards. One pod at a time uses it, or several if its class is shareable."""

    resource: ClassVar[Resource] = Resource(names.GROUP, names.STORAGE_VERSION, "elasticgpuclaims", namespaced=True)

    api_version: str = field(default_factory=lambda: names.API_VERSION)
    spec: ElasticGPUClaimSpec = field(default_factory=ElasticGPUClaimSpec)
    status: ElasticGPUClaimStatus = field(default_factory=ElasticGPUClaimStatus)


# --- ElasticGPUClass ------------------------------------------------------------------------------------------------


class ElasticGPUClass(Object, frozen=True, kw_only=True, tag_field="kind", tag="ElasticGPUClass"):
    """The technology (`provisioner`) that serves the claims of this class, and its parameters."""

    resource: ClassVar[Resource] = Resource(names.GROUP, names.STORAGE_VERSION, "elasticgpuclasses", namespaced=False)

    api_version: str = field(default_factory=lambda: names.API_VERSION)
    provisioner: str = ""
    """The technology that serves the claims, such as elasticgpu.io/vcuda. Cannot change."""
    parameters: dict[str, str] | None = None
    """Parameters of the technology. Cannot change."""
    reclaim_policy: ReclaimPolicy = "Delete"
    """Keep (Retain) or delete the slices of a deleted claim."""
    e_gpu_binding_mode: BindingMode | None = field(default=None, name="eGPUBindingMode")
    """Choose cards as soon as the claim exists, or with its first pod."""
    egpu_binding_mode: BindingMode | None = field(default=None, name="egpuBindingMode")
    """Another spelling of eGPUBindingMode."""

    @property
    def binding_mode(self) -> BindingMode:
        """The binding mode under either spelling; Immediate by default, as for a StorageClass."""
        return self.e_gpu_binding_mode or self.egpu_binding_mode or "Immediate"
