"""Quotas of a namespace for nodes' memory that slices need while they are parked for others.

Kubernetes does not know this amount, so nothing is counted when a pod is created. Each such slice belongs to a claim,
and has its whole size here from the moment at which the claim gets its card.
"""

from collections.abc import Iterable, Mapping, Sequence

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation
from egpu.api.objects import ElasticGPUClaim
from egpu.api.quotas import ResourceQuota
from egpu_base.api.quantities import quantity_or_zero
from egpu_base.errors import Refused


def host_memory_mib(allocated: ContainerAllocation) -> int:
    """Return how much of its node's memory a slice may need: all of it, if it shares room on its card."""
    return sum(share.memory_mib for share in allocated.cards if share.resident_mib)


def by_claim(claims: Iterable[ElasticGPUClaim], pods: Iterable[PodAllocation]) -> dict[str, int]:
    """Return the amounts of a namespace by the name of the claim: of claims with cards, and of those whose cards are
    in a pod's allocation only, because it was bound a moment ago."""
    held = {claim.name: held.container for claim in claims if (held := claim.status.allocation) is not None}
    bound = {one.claim: one for pod in pods for one in pod.containers.values() if one.claim}
    return {name: amount for name, one in (bound | held).items() if (amount := host_memory_mib(one))}


def check_host_memory(
    quotas: Sequence[ResourceQuota], held: Mapping[str, int], new: Mapping[str, ContainerAllocation]
) -> None:
    """Check that claims, by name, may have these new allocations beside what is `held`. Raises Refused."""
    wanted = {name: amount for name, one in new.items() if (amount := host_memory_mib(one)) and name not in held}
    used = sum(held.values())
    for quota in quotas:
        hard = (quota.status.hard or {}).get(names.PARKING_QUOTA)
        if wanted and hard is not None and used + sum(wanted.values()) > quantity_or_zero(hard):
            raise Refused(
                f"quota {quota.name}: {used} of {hard} MiB of nodes' memory for parked slices are used; "
                f"{sum(wanted.values())} more were requested"
            )
