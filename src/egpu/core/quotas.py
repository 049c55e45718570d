"""What a namespace's quotas say to a slice that grows: Kubernetes counted its pod once, when it was made.

So what slices have beyond that is added to what the quota has counted. New pods are let in by Kubernetes, which does
not know of it: after a growth the sum may be above the quota, and then nothing more grows.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from egpu.api import names
from egpu.api.allocation import PodAllocation
from egpu.api.kubernetes import Pod
from egpu.api.quantities import quantity_or_zero
from egpu.api.quotas import ResourceQuota
from egpu.errors import Refused

_COUNTED: Final[tuple[str, ...]] = (names.GPU_CORE, names.GPU_MEMORY)


def beyond_counted(holders: Iterable[tuple[Pod, PodAllocation]]) -> dict[str, int]:
    """By resource, what the containers of these pods have beyond what they were counted with when they were made."""
    beyond: dict[str, int] = dict.fromkeys(_COUNTED, 0)
    for pod, allocation in holders:
        for container in pod.all_containers:
            given = allocation.containers.get(container.name)
            if given is None or not given.revision:
                continue
            limits = (container.resources.limits if container.resources else None) or {}
            core = sum(share.core for share in given.counted)
            memory_mib = sum(share.memory_mib for share in given.counted)
            # What was never counted was none, or the memory that comes with compute.
            with_compute = sum(share.card_memory_mib * share.core // 100 for share in given.counted)
            for resource, amount, came in ((names.GPU_CORE, core, 0), (names.GPU_MEMORY, memory_mib, with_compute)):
                had = int(quantity_or_zero(limits[resource])) if resource in limits else came
                beyond[resource] += max(0, amount - had)
    return beyond


def check_quotas(quotas: Sequence[ResourceQuota], *, before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Whether what is beyond may go from `before` to `after`. Raises Refused, with the numbers."""
    for quota in quotas:
        for resource in _COUNTED:
            key = f"requests.{resource}"
            hard = (quota.status.hard or {}).get(key)
            if hard is None or after[resource] <= before[resource]:
                continue
            used = int(quantity_or_zero((quota.status.used or {}).get(key, 0)))
            if used + after[resource] > quantity_or_zero(hard):
                raise Refused(
                    f"quota {quota.name}: {used} of {hard} {resource} are used, and {before[resource]} by slices that "
                    f"grew; {after[resource] - before[resource]} more are asked for"
                )
