# ruff: noqa: RUF012 - msgspec gives every object its own copy of an empty default
"""The three kinds of the group: ElasticGPU (like a PV), ElasticGPUClaim (a PVC), ElasticGPUClass (a StorageClass).

Immutable msgspec structs; unknown fields are ignored on reading. The spellings of the design articles and of the
upstream project are read beside ours and never written: see
`ElasticGPUClaimSpec.class_name` and `ElasticGPUClass.binding_mode`.
"""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from egpu.api import names
from egpu.api.allocation import ContainerAllocation
from egpu.api.mig import InstancePlace, Mig
from egpu.api.quantities import Quantity
from egpu.api.wire import Resource, Wire


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


def key_of(name: str, namespace: str) -> str:
    """`namespace/name`, or `name` where there is no namespace."""
    return f"{namespace}/{name}" if namespace else name


class Object(Wire, frozen=True, kw_only=True):
    """Anything with metadata. `kind` and `apiVersion` are always written; subclasses say where they live."""

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
    """Of what is referred to."""
    kind: str = ""
    """Of what is referred to."""
    namespace: str = ""
    """Where it is."""
    name: str = ""
    """Its name."""
    uid: str = ""
    """Its UID."""


# --- ElasticGPU -----------------------------------------------------------------------------------------------------


class Link(Wire, frozen=True, kw_only=True):
    """The connection to another card of the node: NVLink, or else `kind` as nvidia-smi's topology names it (PIX, PXB,
    PHB, NODE, SYS)."""

    uuid: str
    """Of the other card."""
    kind: str
    """NVLink, PIX, PXB, PHB, NODE or SYS."""


class PhysicalGPU(Wire, frozen=True, kw_only=True):
    """A card of this node, as its driver reports it. `tflops` by precision: {"fp32": 19.5, "fp16": 312}."""

    uuid: Annotated[str, Meta(min_length=1, max_length=128)]
    """The card's identity, for good."""
    index: Annotated[int, Meta(ge=0)]
    """The driver's number of the card; a reboot may change it."""
    minor: Annotated[int, Meta(ge=0)]
    """N of its device file, /dev/nvidiaN."""
    model: str = ""
    """As the driver names it."""
    memory_mib: Annotated[int, Meta(ge=1, le=names.MAX_MEMORY_MIB)] = 1
    """All of its memory, MiB."""
    compute_capability: str = ""
    """Such as 8.0."""
    tflops: dict[str, float] = {}
    """By precision: {"fp32": 19.5, "fp16": 312}."""
    numa: int = -1
    """NUMA node, -1 when the machine has none."""
    links: list[Link] = []
    """To the other cards of the node."""
    memory_isolation: str = ""
    """ "driver" where the driver limits memory by control group; else empty."""
    mps: str = ""
    """ "ready" where its agent runs an MPS server for it when one is wanted, or why it cannot."""
    mig: Mig | None = None
    """What it can be cut into, and is, while it is in MIG mode; only its instances can be used then."""


class Slice(Wire, frozen=True, kw_only=True):
    """A share of a card that is set aside for a claim."""

    provisioner: str
    """The technology that holds a program to it."""
    mode: Literal["exclusive", "shared"]
    """exclusive: a whole card; shared: a part of one."""
    uuid: str
    """Of the card that it is a share of."""
    index: int
    """That card's number when it was set aside."""
    minor: int
    """N of its device file, /dev/nvidiaN."""
    core: Annotated[int, Meta(ge=0, le=100)] = 0
    """Percent of the card; 0: no compute share of its own."""
    memory_mib: Annotated[int, Meta(ge=0)] = 0
    """MiB of its memory."""
    model: str = ""
    """Of the card."""
    class_name: str = ""
    """The class of its claim."""
    alike: str = ""
    """What all slices of its card have in common beside their technology, in its words; empty: nothing."""
    instance: InstancePlace | None = None
    """The instance of MIG that it is, where it is one."""


ReclaimPolicy = Literal["Retain", "Delete"]
BindingMode = Literal["Immediate", "WaitForFirstConsumer"]
GPUPhase = Literal["Pending", "Available", "Bound", "Released", "Failed"]
ClaimPhase = Literal["Pending", "Bound", "Lost"]


class ElasticGPUSpec(Wire, frozen=True, kw_only=True):
    """Exactly one of `physicalGPU` (a card) and `slice` (a share of one) is set. `unschedulable`: people keep new work
    off the card, as off a node."""

    node_name: str = ""
    """Where the card is."""
    capacity: dict[str, Quantity] = {}
    """What there is to give out, by resource name."""
    physical_gpu: PhysicalGPU | None = None
    """Set of a card."""
    slice: Slice | None = None
    """Set of a share of one."""
    claim_ref: ObjectReference | None = None
    """The claim that the slice is for."""
    reclaim_policy: ReclaimPolicy = "Delete"
    """What becomes of a slice whose claim is deleted."""
    unschedulable: bool = False
    """Nothing new is placed on the card (egpu cordon)."""


class SliceInForce(Wire, frozen=True, kw_only=True):
    """What a card's node says of a slice of it that was resized: which `revision` of its allocation its policy page is
    of, and how much more memory than that is still used. `pod` is the UID."""

    pod: str
    """Its UID."""
    container: str
    """Its name."""
    revision: int
    """Of the allocation that is in force."""
    over_mib: int = 0
    """MiB used beyond it."""


class ElasticGPUStatus(Wire, frozen=True, kw_only=True):
    """Of a card, its agent writes `healthy`, `reason` and `message`, the scheduler extender how much is `given` out and
    `heldBy` whom; a card is Available while nobody holds anything of it, then Bound, and Failed while unhealthy."""

    phase: GPUPhase | None = None
    """Of a card: Available while nobody holds anything of it, then Bound, shared or not; Failed while unhealthy."""
    healthy: bool | None = None
    """What the agent of its node says."""
    reason: str = ""
    """Why it is not healthy, in a word."""
    message: str = ""
    """The same in a sentence."""
    given: dict[str, Quantity] = {}
    """How much of capacity is given out, by resource name."""
    held_by: str = ""
    """Who was given something of the card."""
    in_force: list[SliceInForce] = []
    """Written by the agent, of slices that were resized."""


class ElasticGPU(Object, frozen=True, kw_only=True, tag_field="kind", tag="ElasticGPU"):
    """A card published by the agent of its node (named `card_name(node, uuid)`), or a slice of one held for a claim."""

    resource: ClassVar[Resource] = Resource(names.GROUP, names.STORAGE_VERSION, "elasticgpus", namespaced=False)

    api_version: str = field(default_factory=lambda: names.API_VERSION)
    spec: ElasticGPUSpec = field(default_factory=ElasticGPUSpec)
    status: ElasticGPUStatus = field(default_factory=ElasticGPUStatus)

    @property
    def healthy(self) -> bool:
        """A card is healthy until its agent says that it is not."""
        return self.status.healthy is not False


def card_name(node: str, uuid: str) -> str:
    """Name of the object of a card: node and the first eight hex digits of its UUID."""
    hexadecimal = "".join(c for c in uuid.lower().removeprefix("gpu-").removeprefix("mig-") if c in "0123456789abcdef")
    return f"{node}-{hexadecimal[:8]}"


# --- ElasticGPUClaim ------------------------------------------------------------------------------------------------


class ClaimResources(Wire, frozen=True, kw_only=True):
    requests: dict[str, Quantity] = {}
    """How much, by resource name, such as elasticgpu.io/gpu-core (percent of a card) and elasticgpu.io/gpu-memory
    (MiB)."""
    limits: dict[str, Quantity] = {}
    """As in a PVC: allowed, and must equal `requests` where both name a resource."""


class CardExpression(Wire, frozen=True, kw_only=True):
    """One requirement of a card: `key` is model, memory, computeCapability, tflops, numa or linkDomain."""

    key: Annotated[str, Meta(max_length=63)]
    """model, memory, computeCapability, tflops, numa or linkDomain."""
    operator: Literal["In", "NotIn", "Gt", "Lt", "Exists", "DoesNotExist"]
    """Kubernetes' match operators."""
    values: Annotated[list[Quantity], Meta(max_length=64)] = []
    """What is compared with; one value for Gt and Lt, none for Exists and DoesNotExist."""


class CardSelector(Wire, frozen=True, kw_only=True):
    """All of them must hold of each card."""

    match_expressions: Annotated[list[CardExpression], Meta(max_length=16)] = []
    """All of them must hold."""


class ElasticGPUClaimSpec(Wire, frozen=True, kw_only=True):
    """`selector` says what the cards must be, `cardPreference` which of those that fit are taken."""

    resources: ClaimResources = field(default_factory=ClaimResources)
    """How much is wanted."""
    selector: CardSelector | None = None
    """What each card must be."""
    card_preference: Literal["strongest", "weakest"] | None = None
    """Which of the cards that fit are taken."""
    elastic_gpu_class_name: str = field(default="", name="elasticGPUClassName")
    """The class: which technology, and how. Stays as it is."""
    egpu_class_name: str = field(default="", name="egpuClassName")
    """Another spelling of elasticGPUClassName; one of them is given."""
    storage_class_name: str = field(default="", name="storageClassName")
    """Another spelling of elasticGPUClassName; one of them is given."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The distinct names given under the three spellings; more than one is refused at admission."""
        given = (self.elastic_gpu_class_name, self.egpu_class_name, self.storage_class_name)
        return tuple(dict.fromkeys(name for name in given if name))

    @property
    def class_name(self) -> str:
        """The class under whichever spelling it was given, or empty."""
        return next(iter(self.class_names), "")


class ClaimAllocation(Wire, frozen=True, kw_only=True):
    """Where a claim is bound: the node, and the shares exactly as a container will be given them."""

    node: str
    """Where pods that use the claim run."""
    container: ContainerAllocation
    """What a container that uses it is given."""


class Condition(Wire, frozen=True, kw_only=True):
    type: str
    """What it is about, such as CardsHealthy."""
    status: Literal["True", "False", "Unknown"]
    """Whether it is so."""
    reason: str = ""
    """Why, in a word."""
    message: str = ""
    """Why, in a sentence."""
    last_transition_time: str | None = None
    """When `status` changed last."""


class ElasticGPUClaimStatus(Wire, frozen=True, kw_only=True):
    """`allocation` is written by the scheduler extender (and alone decides what is reserved); the controller makes the
    slices, then writes `boundGPUs` (their names), `phase`, `usedBy` ("pod/container") and conditions."""

    phase: ClaimPhase | None = None
    """Pending until cards are found, Bound from then on, Lost when they are gone."""
    allocation: ClaimAllocation | None = None
    """What it is bound to; written by the scheduler extender."""
    bound_gpus: list[str] = []
    """Names of its slices."""
    used_by: list[str] = []
    """Who uses it: pod/container."""
    capacity: dict[str, Quantity] = {}
    """What it got, by resource name."""
    conditions: list[Condition] = []
    """What else is to be known of it."""


class ElasticGPUClaim(Object, frozen=True, kw_only=True, tag_field="kind", tag="ElasticGPUClaim"):
    """A user's request for a slice or for cards, used by one pod at a time, or by several where its class says so."""

    resource: ClassVar[Resource] = Resource(names.GROUP, names.STORAGE_VERSION, "elasticgpuclaims", namespaced=True)

    api_version: str = field(default_factory=lambda: names.API_VERSION)
    spec: ElasticGPUClaimSpec = field(default_factory=ElasticGPUClaimSpec)
    status: ElasticGPUClaimStatus = field(default_factory=ElasticGPUClaimStatus)


# --- ElasticGPUClass ------------------------------------------------------------------------------------------------


class ElasticGPUClass(Object, frozen=True, kw_only=True, tag_field="kind", tag="ElasticGPUClass"):
    """Names the technology (`provisioner`) that serves the claims of this class, and its parameters."""

    resource: ClassVar[Resource] = Resource(names.GROUP, names.STORAGE_VERSION, "elasticgpuclasses", namespaced=False)

    api_version: str = field(default_factory=lambda: names.API_VERSION)
    provisioner: str = ""
    """The technology that serves its claims, such as elasticgpu.io/vcuda. Stays as it is."""
    parameters: dict[str, str] | None = None
    """What the technology is told. Stays as it is."""
    reclaim_policy: ReclaimPolicy = "Delete"
    """What becomes of the slices of a claim that is deleted."""
    e_gpu_binding_mode: BindingMode | None = field(default=None, name="eGPUBindingMode")
    """When cards are chosen: as soon as there is a claim, or for its first pod."""
    egpu_binding_mode: BindingMode | None = field(default=None, name="egpuBindingMode")
    """Another spelling of eGPUBindingMode."""

    @property
    def binding_mode(self) -> BindingMode:
        """Under whichever spelling it was given; Immediate when it was not, as for a StorageClass."""
        return self.e_gpu_binding_mode or self.egpu_binding_mode or "Immediate"
