"""The small part of Kubernetes' own kinds that we read or write. Unknown fields are ignored; what Go may write as null
is optional. Not a complete model of Kubernetes, and never used to write back an object that others own:
those are patched.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal

from msgspec import field

from egpu_base.api.objects import Condition, Object, ObjectMeta, ObjectReference, OwnerReference
from egpu_base.api.quantities import Quantity
from egpu_base.api.wire import Resource, Wire

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})

# --- Pod ------------------------------------------------------------------------------------------------------------


class UsedClaim(Wire, frozen=True, kw_only=True):
    """A claim of the pod (`name`, as in `spec.resourceClaims`) that a container uses; an empty `request` is all."""

    name: str
    request: str = ""


class ResourceRequirements(Wire, frozen=True, kw_only=True):
    limits: dict[str, Quantity] | None = None
    requests: dict[str, Quantity] | None = None
    claims: list[UsedClaim] | None = None


class ObjectFieldSelector(Wire, frozen=True, kw_only=True):
    field_path: str
    api_version: str = ""


class EnvVarSource(Wire, frozen=True, kw_only=True):
    field_ref: ObjectFieldSelector | None = None


class EnvVar(Wire, frozen=True, kw_only=True):
    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


class ContainerPort(Wire, frozen=True, kw_only=True):
    """A port. A `host_port` of 0 is none; an empty `host_ip` is every address of the node."""

    host_port: int = 0
    host_ip: str = field(default="", name="hostIP")
    protocol: str = "TCP"


MIRROR: Final = "kubernetes.io/config.mirror"
"""The annotation of a pod that shows a static pod of its node."""


class Container(Wire, frozen=True, kw_only=True):
    name: str
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    working_dir: str = ""
    env: Sequence[EnvVar] | None = None
    env_from: Sequence[Any] | None = None
    """Variables from other objects, which the pod itself does not show."""
    ports: Sequence[ContainerPort] | None = None
    resources: ResourceRequirements | None = None
    restart_policy: str | None = None
    """"Always" on an init container makes it restartable (a sidecar)."""


class Toleration(Wire, frozen=True, kw_only=True):
    """A toleration. An empty key with operator Exists tolerates everything; an empty effect matches every effect."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class PodSpec(Wire, frozen=True, kw_only=True):
    containers: Sequence[Container] | None = None
    init_containers: Sequence[Container] | None = None
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    scheduler_name: str = ""
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    priority: int | None = None
    preemption_policy: str = ""
    service_account_name: str = ""
    tolerations: list[Toleration] | None = None
    affinity: dict[str, Any] | None = None
    topology_spread_constraints: list[dict[str, Any]] | None = None
    scheduling_gates: list[dict[str, str]] | None = None
    scheduling_group: dict[str, Any] | None = None
    """The PodGroup of scheduling.k8s.io that the pod belongs to, as `podGroupName`."""
    workload_ref: dict[str, Any] | None = None
    """The same in Kubernetes 1.35: a group of a Workload."""
    volumes: Sequence[Any] | None = None
    resource_claims: Sequence[dict[str, Any]] | None = None
    """Claims of Kubernetes' own dynamic resource allocation."""
    overhead: dict[str, Quantity] | None = None
    resources: ResourceRequirements | None = None


class ContainerStateRunning(Wire, frozen=True, kw_only=True):
    started_at: str | None = None


class ContainerStateWaiting(Wire, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class ContainerStateTerminated(Wire, frozen=True, kw_only=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(Wire, frozen=True, kw_only=True):
    running: ContainerStateRunning | None = None
    waiting: ContainerStateWaiting | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Wire, frozen=True, kw_only=True):
    name: str
    container_id: str = field(default="", name="containerID")
    image: str = ""
    image_id: str = field(default="", name="imageID")
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class PodStatus(Wire, frozen=True, kw_only=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    host_ip: str = ""
    pod_ip: str = ""
    nominated_node_name: str = ""
    start_time: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[dict[str, Any]] | None = None
    """The names of the claims that were made for the pod: `name` in the pod, and `resourceClaimName`."""


class Pod(Object, frozen=True, kw_only=True, tag_field="kind", tag="Pod"):
    resource: ClassVar[Resource] = Resource("", "v1", "pods", namespaced=True)

    api_version: str = field(default_factory=lambda: "v1")
    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)

    @property
    def containers(self) -> Sequence[Container]:
        """Return the app containers."""
        return self.spec.containers or []

    @property
    def init_containers(self) -> Sequence[Container]:
        """Return the init containers, restartable ones included."""
        return self.spec.init_containers or []

    @property
    def all_containers(self) -> list[Container]:
        return [*self.init_containers, *self.containers]

    @property
    def is_mirror(self) -> bool:
        """Return whether kubelet made this pod to show a static pod, which it runs whether or not this one exists."""
        return MIRROR in self.annotations

    @property
    def finished(self) -> bool:
        """Return whether the phase is terminal and no container still runs: only then does the pod release its cards. A
        pod that is being deleted (`deletionTimestamp`) still holds them: its processes may be running."""
        if self.status.phase not in TERMINAL_PHASES:
            return False
        statuses = [*(self.status.container_statuses or []), *(self.status.init_container_statuses or [])]
        return not any(status.state is not None and status.state.running is not None for status in statuses)


class NodeAddress(Wire, frozen=True, kw_only=True):
    type: str
    address: str


class NodeSystemInfo(Wire, frozen=True, kw_only=True):
    kubelet_version: str = ""
    container_runtime_version: str = ""


class Taint(Wire, frozen=True, kw_only=True):
    key: str
    effect: str
    value: str = ""


class NodeSpec(Wire, frozen=True, kw_only=True):
    provider_id: str = ""
    """The machine's name at its provider, such as `kind://…`."""
    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeStatus(Wire, frozen=True, kw_only=True):
    capacity: dict[str, Quantity] | None = None
    allocatable: dict[str, Quantity] | None = None
    conditions: list[Condition] | None = None
    addresses: list[NodeAddress] | None = None
    node_info: NodeSystemInfo = field(default_factory=NodeSystemInfo)


class Node(Object, frozen=True, kw_only=True, tag_field="kind", tag="Node"):
    resource: ClassVar[Resource] = Resource("", "v1", "nodes", namespaced=False)

    api_version: str = field(default_factory=lambda: "v1")
    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=NodeStatus)


# --- Binding, Event, Lease, Secret ----------------------------------------------------------------------------------


class Binding(Object, frozen=True, kw_only=True, tag_field="kind", tag="Binding"):
    """`POST pods/NAME/binding`: sets nodeName and merges `metadata.annotations` into the pod in one atomic call."""

    resource: ClassVar[Resource] = Resource("", "v1", "bindings", namespaced=True)

    api_version: str = field(default_factory=lambda: "v1")
    target: ObjectReference


class Event(Object, frozen=True, kw_only=True, tag_field="kind", tag="Event"):
    resource: ClassVar[Resource] = Resource("", "v1", "events", namespaced=True)

    api_version: str = field(default_factory=lambda: "v1")
    involved_object: ObjectReference = field(default_factory=ObjectReference)
    reason: str = ""
    message: str = ""
    type: Literal["Normal", "Warning"] | None = None
    count: int = 1
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    source: dict[str, str] | None = None
    reporting_component: str = ""
    reporting_instance: str = ""


class LeaseSpec(Wire, frozen=True, kw_only=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Object, frozen=True, kw_only=True, tag_field="kind", tag="Lease"):
    resource: ClassVar[Resource] = Resource("coordination.k8s.io", "v1", "leases", namespaced=True)

    api_version: str = field(default_factory=lambda: "coordination.k8s.io/v1")
    spec: LeaseSpec = field(default_factory=LeaseSpec)


class Secret(Object, frozen=True, kw_only=True, tag_field="kind", tag="Secret"):
    """A Secret. `data` values are base64 text."""

    resource: ClassVar[Resource] = Resource("", "v1", "secrets", namespaced=True)

    api_version: str = field(default_factory=lambda: "v1")
    type: str = ""
    data: dict[str, str] | None = None


class ServiceAccount(Object, frozen=True, kw_only=True, tag_field="kind", tag="ServiceAccount"):
    resource: ClassVar[Resource] = Resource("", "v1", "serviceaccounts", namespaced=True)

    api_version: str = field(default_factory=lambda: "v1")


class Namespace(Object, frozen=True, kw_only=True, tag_field="kind", tag="Namespace"):
    resource: ClassVar[Resource] = Resource("", "v1", "namespaces", namespaced=False)

    api_version: str = field(default_factory=lambda: "v1")


class CustomResourceDefinition(Object, frozen=True, kw_only=True, tag_field="kind", tag="CustomResourceDefinition"):
    """A definition, as plain JSON below `spec`: it is applied from generated files, and only its name is read."""

    resource: ClassVar[Resource] = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)

    api_version: str = field(default_factory=lambda: "apiextensions.k8s.io/v1")
    spec: dict[str, Any] = field(default_factory=dict[str, Any])


# --- selectors ------------------------------------------------------------------------------------------------------


class LabelSelectorRequirement(Wire, frozen=True, kw_only=True):
    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(Wire, frozen=True, kw_only=True):
    match_labels: dict[str, str] | None = None
    match_expressions: list[LabelSelectorRequirement] | None = None


__all__ = [
    "Binding",
    "Condition",
    "Container",
    "ContainerPort",
    "ContainerState",
    "ContainerStateRunning",
    "ContainerStateTerminated",
    "ContainerStateWaiting",
    "ContainerStatus",
    "CustomResourceDefinition",
    "EnvVar",
    "EnvVarSource",
    "Event",
    "LabelSelector",
    "LabelSelectorRequirement",
    "Lease",
    "LeaseSpec",
    "Namespace",
    "Node",
    "NodeAddress",
    "NodeSpec",
    "NodeStatus",
    "Object",
    "ObjectFieldSelector",
    "ObjectMeta",
    "ObjectReference",
    "OwnerReference",
    "Pod",
    "PodSpec",
    "PodStatus",
    "ResourceRequirements",
    "Secret",
    "ServiceAccount",
    "Taint",
    "Toleration",
]
