"""Quotas of a namespace for cards that Kubernetes did not count: it counts a pod once, when it is created.

Slices grow later, and a claim may have cards without a pod that counts them: before its first pod, between two pods, or
as a claim of several pods, which count as nothing. ResourceClaims are never counted in these units. These amounts are
added to the quota's used amount. Kubernetes does not know them and still admits new pods, so the sum may exceed the
quota; then no slice grows, and neither a claim nor a pod gets cards.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation
from egpu.api.objects import ElasticGPUClaim
from egpu.api.quotas import ResourceQuota
from egpu.core.demand.pods import claims_by_container
from egpu_base.api.kubernetes import Container, Pod
from egpu_base.api.quantities import quantity_or_zero
from egpu_base.errors import InvalidDemand, Refused

_COUNTED: Final[tuple[str, ...]] = (names.GPU_CORE, names.GPU_MEMORY)


def beyond_counted(holders: Iterable[tuple[Pod, PodAllocation]]) -> dict[str, int]:
    """Return, by resource, how much these pods' containers have beyond the amounts that they were counted with."""
    beyond: dict[str, int] = dict.fromkeys(_COUNTED, 0)
    for pod, allocation in holders:
        for container in pod.all_containers:
            allocated = allocation.containers.get(container.name)
            if allocated is None or not allocated.revision:
                continue
            had = _amounts(container)
            for resource, (amount, came) in _held(allocated).items():
                # An amount that was never counted was 0, or the memory that comes with compute.
                beyond[resource] += max(0, amount - had.get(resource, came))
    return beyond


def of_claims(claims: Iterable[ContainerAllocation]) -> dict[str, int]:
    """Return, by resource, the amounts of claims. Memory that comes with compute is not counted, as for a pod."""
    beyond: dict[str, int] = dict.fromkeys(_COUNTED, 0)
    for allocated in claims:
        for resource, (amount, came) in _held(allocated).items():
            beyond[resource] += amount if amount > came else 0
    return beyond


def uncounted(claims: Iterable[ElasticGPUClaim], pods: Iterable[Pod]) -> dict[str, ContainerAllocation]:
    """Return the claims with cards, by UID, that none of the pods counts. All are of one namespace."""
    counted = {name for pod in pods if not pod.finished for name in counted_claims(pod)}
    return {
        claim.uid: held.container
        for claim in claims
        if (held := claim.status.allocation) is not None and claim.name not in counted
    }


def counted_claims(pod: Pod) -> set[str]:
    """Return the claims that Kubernetes counted with this pod: those that it uses alone."""
    try:
        used = claims_by_container(pod)
    except InvalidDemand:
        return set()
    return {used[one.name] for one in pod.all_containers if one.name in used and _amounts(one)}


def counted_of(pod: Pod) -> dict[str, int]:
    """Return the amounts that Kubernetes counted for a pod."""
    each = [_amounts(container) for container in pod.all_containers]
    return {resource: sum(one.get(resource, 0) for one in each) for resource in _COUNTED}


def check_quotas(
    quotas: Sequence[ResourceQuota],
    *,
    before: Mapping[str, int],
    after: Mapping[str, int],
    counted: Mapping[str, int] | None = None,
) -> None:
    """Check that what Kubernetes did not count may go from `before` to `after`.

    `counted`: what is requested and counted already. Raises Refused, with the numbers.
    """
    for quota in quotas:
        for resource in _COUNTED:
            key = f"requests.{resource}"
            hard, new = (quota.status.hard or {}).get(key), (counted or {}).get(resource, 0)
            wanted = after[resource] - before[resource] + new
            if hard is None or wanted <= 0:
                continue
            used = int(quantity_or_zero((quota.status.used or {}).get(key, 0)))
            if used + after[resource] > quantity_or_zero(hard):
                raise Refused(
                    f"quota {quota.name}: {used - new} of {hard} {resource} are used, and {before[resource]} more by "
                    f"slices that grew and by claims that no pod counts; {wanted} more were requested"
                )


def _amounts(container: Container) -> dict[str, int]:
    limits = (container.resources.limits if container.resources else None) or {}
    return {resource: int(quantity_or_zero(limits[resource])) for resource in _COUNTED if resource in limits}


def _held(allocated: ContainerAllocation) -> dict[str, tuple[int, int]]:
    """Return by resource how much is held, and how much of it would come by itself."""
    core = sum(share.core for share in allocated.counted)
    memory_mib = sum(share.memory_mib for share in allocated.counted)
    with_compute = sum(share.card_memory_mib * share.core // 100 for share in allocated.counted)
    return {names.GPU_CORE: (core, 0), names.GPU_MEMORY: (memory_mib, with_compute)}
