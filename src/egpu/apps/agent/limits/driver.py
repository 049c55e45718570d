"""Memory limits that the driver enforces: set on the pod's control group before a container of it starts.

A container has no control group yet when kubelet asks, and a limit covers everything below it. So the pod's limit is
the sum of its containers' memory on the card. It goes when kubelet removes the group, even after the agent died."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from egpu.adapters.cards.memory_limits import MemoryLimit, pod_group
from egpu.api.allocation import ContainerAllocation
from egpu.apps.agent.slots.directories import Slots
from egpu.apps.agent.slots.owners import Owner
from egpu.core.provisioners.preparation import MIB_BYTES
from egpu_base.errors import Unavailable

log = structlog.get_logger(__name__)


class DriverLimits:
    """Sets limits. `set_limit` (UUID, group, bytes) is the driver's; kubelet makes groups below `cgroup_root`."""

    def __init__(self, slots: Slots, cgroup_root: Path, set_limit: Callable[[str, Path, int], MemoryLimit]) -> None:
        self._slots = slots
        self._cgroup_root = cgroup_root
        self._set = set_limit

    async def apply(self, owner: Owner) -> None:
        """Limit the pod of a container whose class asks for it. Raises Unavailable, NotSupported."""
        group = await asyncio.to_thread(pod_group, self._cgroup_root, owner.pod.uid)
        if group is None:
            raise Unavailable(f"pod {owner.pod.key} has no control group below {self._cgroup_root} yet")
        others = [
            record.allocation
            for record in self._slots.records()
            if record.pod_uid == owner.pod.uid and record.container != owner.container
        ]
        for share in owner.allocation.cards:
            limit_bytes = sum(_bytes_of(share.uuid, one) for one in (owner.allocation, *others))
            found = await asyncio.to_thread(self._set, share.uuid, group, limit_bytes)
            log.info("memory limited by the driver", pod=owner.pod.key, uuid=share.uuid, limit=found)


def _bytes_of(uuid: str, allocation: ContainerAllocation) -> int:
    return sum(share.memory_mib for share in allocation.cards if share.uuid == uuid) * MIB_BYTES
