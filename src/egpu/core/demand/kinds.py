"""The kind of work of a slice: on a shared card, launches of latency work come before those of batch work.

A class says it (`work`), or else the pod's priority does. Priorities are known for pods alone, so a claim keeps what
its class says, and each pod's own allocation has the kind. A slice of several pods (`shareable`) is batch work unless
its class says otherwise: its pods may have different priorities.
"""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from egpu.api.allocation import ContainerAllocation, PodAllocation
from egpu.api.objects import ElasticGPUClass
from egpu.core.demand.limits import check_bursts
from egpu.core.provisioners import provisioner
from egpu.core.provisioners.base import Provisioner
from egpu_base.api.quantities import parse_count
from egpu_base.errors import InvalidDemand, InvalidQuantity

Parameters = Mapping[str, str]

WORK: Final = "work"
"""Class parameter: "latency" or "batch". Without it, priorities decide."""
BATCH, LATENCY = "batch", "latency"
LATENCY_PRIORITY: Final = "latencyPriority"
"""Class parameter: pods of this priority or a higher one are latency work. Default: DEFAULT_PRIORITY."""
DEFAULT_PRIORITY: Final = 1_000_000
"""The value of `high-priority` in Kubernetes' documents. In clusters without priorities, pods have 0: batch work."""
MOST_PRIORITY: Final = 2_000_001_000
"""Kubernetes' highest priority, `system-node-critical`."""


def is_latency(parameters: Parameters, technology: Provisioner) -> bool:
    """Return whether a class is for latency work. Raises InvalidDemand for a technology without turns."""
    if parameters.get(WORK, BATCH) != LATENCY:
        return False
    check_bursts(technology, f"parameters[{WORK}]", "turns")
    return True


def latency_priority(parameters: Parameters, technology: Provisioner) -> int | None:
    """Return the least priority of latency work; None if priorities do not decide. Raises InvalidDemand."""
    text = parameters.get(LATENCY_PRIORITY)
    if text is None:
        return DEFAULT_PRIORITY if technology.bursts and WORK not in parameters else None
    field = f"parameters[{LATENCY_PRIORITY}]"
    if WORK in parameters:
        raise InvalidDemand(field, f"the class sets {WORK}, so no priority decides; remove one of the two")
    check_bursts(technology, field, "turns")
    try:
        least = parse_count(text, field=field)
    except InvalidQuantity as error:
        raise InvalidDemand(field, error.reason) from error
    if least > MOST_PRIORITY:
        raise InvalidDemand(field, f"{least} is more than Kubernetes' highest priority, {MOST_PRIORITY}")
    return least


def with_kinds(allocation: PodAllocation, priority: int, classes: Mapping[str, ElasticGPUClass]) -> PodAllocation:
    """Return the allocation of a pod with the kinds of work that its priority decides."""
    kinds = {name: _with_kind(one, priority, classes) for name, one in allocation.containers.items()}
    return replace(allocation, containers=kinds)


def _with_kind(
    container: ContainerAllocation, priority: int, classes: Mapping[str, ElasticGPUClass]
) -> ContainerAllocation:
    klass = classes.get(container.class_name)
    if container.exclusive or container.shared_claim or (container.claim and klass is None):
        return container  # a bound claim keeps what its class said
    if not all(share.core for share in container.cards):
        return container  # without a share of compute, nothing can be charged for turns
    parameters = (klass.parameters or {}) if klass is not None else {}
    try:
        least = latency_priority(parameters, provisioner(container.provisioner))
    except InvalidDemand:
        return container  # an older class, which was not checked
    return container if least is None else replace(container, latency=priority >= least)
