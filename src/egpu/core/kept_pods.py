"""The part of a pod that our components keep, which is limited in size.

Anyone who may create pods can create many that wait, each as large as an API server takes (1.5 MiB). kube-scheduler
keeps them whole. We keep what decides about cards. kube-scheduler shows us the whole pod whenever it places it.
"""

import itertools
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import field
from msgspec.structs import replace

from egpu.api import names
from egpu_base.api.kubernetes import Container, Pod, PodSpec, PodStatus, ResourceRequirements
from egpu_base.api.objects import ObjectMeta
from egpu_base.api.quantities import Quantity
from egpu_base.api.wire import Wire, packed_bytes

MOST_BYTES: Final = 32 * 1024
"""The size of a pod's part, packed, beyond which only the least of it is kept. A usual one has 1 to 3 KiB."""
MOST_CONTAINERS: Final = 512
"""Of a large pod, those that ask for devices. More are refused where they ask for ours."""
_OURS: Final = "elasticgpu.io"
_ALWAYS: Final = (names.ALLOCATION, names.GANG, names.GANG_SIZE, names.GANG_TIMEOUT)
_UNKNOWN_CONSTRAINTS: Final[list[dict[str, Any]]] = [{"whenUnsatisfiable": "DoNotSchedule"}]
"""Constraints that only kube-scheduler can judge: no other pod is evicted for such a one."""


def kept(pod: Pod) -> Pod:
    """Return a pod without parts that are unused, and without scheduling constraints once it has a node. Of one that is
    still large, return the least that counts its cards, its containers' requests and its wait."""
    unused: dict[str, Any] = {"tolerations": None, "volumes": None, "scheduling_gates": None}
    part = replace(pod, spec=bare(pod.spec, **(unused if pod.spec.node_name else {})))
    return part if packed_bytes(part) <= MOST_BYTES else _least(part)


def kept_of_large(text: msgspec.Raw) -> Pod:
    """Return the least of a pod that an API server sent, without making objects of its other parts. Raises msgspec's
    errors."""
    return _least(_read(text))


def _read(text: msgspec.Raw) -> Pod:
    read = msgspec.json.decode(text, type=_Large)
    spec = PodSpec(
        containers=[one.container() for one in read.spec.containers or ()],
        init_containers=[one.container() for one in read.spec.init_containers or ()] or None,
        node_name=read.spec.node_name,
        scheduler_name=read.spec.scheduler_name,
        termination_grace_period_seconds=read.spec.termination_grace_period_seconds,
        priority=read.spec.priority,
        preemption_policy=read.spec.preemption_policy,
        overhead=read.spec.overhead,
        scheduling_gates=read.spec.scheduling_gates,
        scheduling_group=read.spec.scheduling_group,
        resource_claims=read.spec.resource_claims,
    )
    return Pod(metadata=read.metadata.meta(), spec=spec, status=read.status)


def of_node(pod: Pod) -> Pod:
    """Return a pod as its node's agent needs it: of a large one what asks for devices, its claims and every
    status, which tells the container that starts next."""
    return pod if packed_bytes(pod) <= MOST_BYTES else _of_node(pod)


def of_node_of_large(text: msgspec.Raw) -> Pod:
    """Return the same of a large pod that an API server sent, as `kept_of_large` does. Raises msgspec's errors."""
    return _of_node(_read(text))


def _of_node(pod: Pod) -> Pod:
    spec = pod.spec
    kept = replace(
        _least(pod).spec,
        containers=_asking(spec.containers),
        init_containers=_asking(spec.init_containers) or None,
        resource_claims=spec.resource_claims,
    )
    return replace(_least(pod), spec=kept, status=pod.status)


def _asking(containers: Sequence[Container] | None) -> list[Container]:
    asking = (_bare(one) for one in containers or () if one.resources and _asks(one.resources))
    return list(itertools.islice(asking, MOST_CONTAINERS))


def _asks(needs: ResourceRequirements) -> bool:
    """Return whether a container asks for more than CPU and memory: the names of all else have a domain."""
    return any("/" in name for name in (*(needs.limits or ()), *(needs.requests or ())))


def bare(spec: PodSpec, **changes: Any) -> PodSpec:
    """Return a pod's spec without what its containers run, and with these changes."""
    containers, init = list(map(_bare, spec.containers or ())), list(map(_bare, spec.init_containers or ()))
    return replace(spec, containers=containers, init_containers=init or None, **changes)


def _bare(container: Container) -> Container:
    return replace(container, env=None, env_from=None, image="", command=None, args=None, working_dir="")


def _least(pod: Pod) -> Pod:
    spec, status = pod.spec, pod.status
    ours = {key: text for key, text in pod.annotations.items() if _OURS in key}
    holds = bool(spec.node_name) and names.ALLOCATION in ours  # then it has passed admission, and may use claims
    if not holds and packed_bytes((ours, spec.containers, spec.init_containers, spec.resource_claims)) > MOST_BYTES:
        # It is not woken, and no other pod is evicted for it.
        ours = {key: ours[key] for key in _ALWAYS if key in ours}
        spec = replace(spec, containers=[], init_containers=None, resource_claims=None)
    metadata = replace(pod.metadata, labels=None, owner_references=None, finalizers=None, annotations=ours)
    spec = PodSpec(
        containers=spec.containers,
        init_containers=spec.init_containers,
        node_name=spec.node_name,
        scheduler_name=spec.scheduler_name,
        termination_grace_period_seconds=spec.termination_grace_period_seconds,
        priority=spec.priority,
        preemption_policy=spec.preemption_policy,
        overhead=spec.overhead,
        topology_spread_constraints=None if spec.node_name else _UNKNOWN_CONSTRAINTS,
        scheduling_gates=(spec.scheduling_gates or [])[:1] or None,
        scheduling_group=spec.scheduling_group,
        resource_claims=spec.resource_claims,
    )
    if packed_bytes(status) > MOST_BYTES:
        running = [one for one in status.container_statuses or () if one.state and one.state.running]
        status = PodStatus(phase=status.phase, start_time=status.start_time, container_statuses=running[:1])
    return replace(pod, metadata=metadata, spec=spec, status=status)


class _LargeMeta(Wire, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    annotations: dict[str, str] | None = None

    def meta(self) -> ObjectMeta:
        return ObjectMeta(**msgspec.structs.asdict(self))


class _LargeContainer(Wire, frozen=True, kw_only=True):
    name: str
    resources: ResourceRequirements | None = None
    restart_policy: str | None = None

    def container(self) -> Container:
        return Container(name=self.name, resources=self.resources, restart_policy=self.restart_policy)


class _LargeSpec(Wire, frozen=True, kw_only=True):
    containers: list[_LargeContainer] | None = None
    init_containers: list[_LargeContainer] | None = None
    node_name: str = ""
    scheduler_name: str = ""
    termination_grace_period_seconds: int | None = None
    priority: int | None = None
    preemption_policy: str = ""
    overhead: dict[str, Quantity] | None = None
    scheduling_gates: list[dict[str, str]] | None = None
    scheduling_group: dict[str, Any] | None = None
    resource_claims: list[dict[str, Any]] | None = None


class _Large(Wire, frozen=True, kw_only=True):
    """A pod without the parts that `_least` drops. Its reader skips them."""

    metadata: _LargeMeta
    spec: _LargeSpec
    status: PodStatus = field(default_factory=PodStatus)
