"""The resource names that nodes publish in all vocabularies, and when a node must publish none of them.

A pod gets a card by its `elasticgpu.io/slot`, which kubelet gives out while a node's shim is registered. The other
names are amounts that the agent writes into the node's status. kubelet does not manage them: it starts a pod that asks
for them alone, with or without an agent. The webhook adds the slot to each pod. So amounts must not stay on a node
without slots, where a pod that the webhook never saw would run without a GPU.
"""

from collections.abc import Mapping
from typing import Any, Final

from egpu.api import names
from egpu.api.vocabularies import OPTIONAL
from egpu.core.provisioners import PROVISIONERS, NodeTotals

_EVERYTHING: Final = NodeTotals(cards=0, memory_mib=0, tflops=0.0, pool_slots=1, vocabularies=OPTIONAL)
OFFERED: Final = frozenset(name for one in PROVISIONERS.values() for name in one.capacity(_EVERYTHING))
"""Every name under which an agent publishes amounts, but for the profiles of MIG."""
_NVIDIA: Final = "nvidia.com/"


def is_offered(resource: str) -> bool:
    """Return whether agents publish this resource. kubelet publishes `elasticgpu.io/slot`."""
    return resource in OFFERED or resource.startswith(names.MIG_PREFIX)


def withdrawn(published: Mapping[str, Any], *, others: bool = False) -> dict[str, None]:
    """Return a merge patch that takes everything that an agent published out of a node's capacity. `others`: another
    program publishes NVIDIA's names on the node, so they stay."""
    ours = (name for name in published if is_offered(name))
    return dict.fromkeys(name for name in ours if not (others and name.startswith(_NVIDIA)))


def has_slots(allocatable: Mapping[str, Any] | None) -> bool:
    """Return whether kubelet gives out slots on a node."""
    return str((allocatable or {}).get(names.SLOT, "0")) != "0"


def orphaned(allocatable: Mapping[str, Any] | None) -> bool:
    """Return whether a node publishes amounts of ours that nobody serves. `nvidia.com` names alone may be another's."""
    if has_slots(allocatable):
        return False
    offered = (name for name, amount in (allocatable or {}).items() if is_offered(name) and str(amount) != "0")
    return any(not name.startswith(_NVIDIA) for name in offered)
