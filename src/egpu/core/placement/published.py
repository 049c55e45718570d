"""Published objects as the ledger's values: cards, slices, and nodes of the pool."""

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, PodAllocation
from egpu.api.objects import ElasticGPU, Link, PhysicalGPU
from egpu.core.demand.classes import PRECISIONS
from egpu.core.placement.cards import Card
from egpu.core.placement.ledger import PoolNode
from egpu.core.placement.requests import CLAIM_CONTAINER
from egpu_base.api.kubernetes import Node
from egpu_base.api.wire import packed_bytes

CORDONED: Final = "is cordoned"
BY_CLAIMS: Final = "is given out by ResourceClaims only"
CONTESTED: Final = "is given out by another program, too (see the node's condition ElasticGPUReady)"
_BY_ALLOCATOR: Final[Mapping[str, str]] = {names.DRA: BY_CLAIMS, names.OTHER_PLUGIN: CONTESTED}
_NO_LINKS: Final[Mapping[str, str]] = {}
MOST_BYTES: Final = 64 * 1024
"""The size of a card or slice, packed, beyond which it is cut. A card with 63 links and MIG profiles has 10 KiB."""
MOST_CHARACTERS: Final = 1024
MOST_IN_FORCE: Final = 512
MOST_GIVEN: Final = 64
MOST_DIGITS: Final = 9
"""Of MiB in a node's annotation."""
MAX_LINK_MBPS: Final = 10**9
"""Larger link speeds in a node's annotation count as this."""


def parking_memory(node: Node) -> int:
    """Return how many MiB of a node's own memory parked slices may take; 0 for none, or for no valid number."""
    text = node.annotations.get(names.PARKING_MEMORY, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else 0


def pool_node(node: Node) -> PoolNode | None:
    """Return a node's part in the pool, None outside it. A node that is away or cordoned serves nothing new."""
    if not node.annotations.get(names.POOL_ADDRESS):
        return None
    link = node.annotations.get(names.POOL_LINK, "")
    ready = all(one.status == "True" for one in node.status.conditions or [] if one.type == "Ready")
    serving = ready and not node.spec.unschedulable and node.metadata.deletion_timestamp is None
    return PoolNode(_link_mbps(link), serving)


def _link_mbps(text: str) -> int:
    """Parse a link speed; 0 if it is not a number: root of one node, who may write it, must not stop readers."""
    if not text.isdecimal():
        return 0
    return MAX_LINK_MBPS if len(text) > len(str(MAX_LINK_MBPS)) else min(int(text), MAX_LINK_MBPS)


def is_card(gpu: ElasticGPU) -> bool:
    """Return whether the object is a card that an agent published; otherwise it is a slice of one."""
    return gpu.spec.physical_gpu is not None and gpu.spec.claim_ref is None


def card_of(gpu: ElasticGPU) -> Card:
    """Return the ledger's record of a published card."""
    physical = gpu.spec.physical_gpu
    assert physical is not None
    return Card(
        uuid=sys.intern(physical.uuid),
        index=physical.index,
        minor=physical.minor,
        memory_mib=physical.memory_mib,
        model=sys.intern(physical.model),
        tflops=_figures(tuple((name, physical.tflops[name]) for name in PRECISIONS if name in physical.tflops)),
        numa=physical.numa,
        healthy=not (reason := _why_not(gpu)),
        why_not=reason,
        cordoned=reason == CORDONED,
        by_claims=reason == BY_CLAIMS,
        priced=physical.allocator == names.PRICED,
        contested=reason == CONTESTED,
        compute_capability=sys.intern(physical.compute_capability),
        memory_isolation=sys.intern(physical.memory_isolation),
        mps=sys.intern(physical.mps),
        mig=physical.mig,
        links=_links(physical.links),
    )


def kept_gpu(gpu: ElasticGPU) -> ElasticGPU:
    """Return an object as it is kept: a usual one whole, a large slice without labels and annotations. A large card is
    cut to what names and counts it, and takes no new work."""
    if packed_bytes(gpu) <= MOST_BYTES:
        return gpu
    physical, status = gpu.spec.physical_gpu, gpu.status
    if physical is None:
        return replace(gpu, metadata=replace(gpu.metadata, labels=None, annotations=None))
    metadata = replace(gpu.metadata, labels=None, annotations=None, finalizers=None, owner_references=None)
    cut = PhysicalGPU(
        uuid=physical.uuid,
        index=physical.index,
        minor=physical.minor,
        model=physical.model[:MOST_CHARACTERS],
        memory_mib=physical.memory_mib,
    )
    status = replace(
        status,
        healthy=False,
        reason="TooLarge",
        message=f"its object has more than {MOST_BYTES // 1024} KiB",
        held_by=status.held_by[:MOST_CHARACTERS],
        given=dict(list(status.given.items())[:MOST_GIVEN]),
        in_force=status.in_force[:MOST_IN_FORCE],
    )
    return replace(gpu, metadata=metadata, spec=replace(gpu.spec, physical_gpu=cut, capacity={}), status=status)


def _links(links: Sequence[Link]) -> Mapping[str, str]:
    """Return the kinds of a card's links to other cards of its node, by their UUIDs."""
    near = links[: names.MAX_CARDS_PER_NODE]
    return {link.uuid: sys.intern(link.kind) for link in near} if near else _NO_LINKS


@lru_cache(maxsize=256)
def _figures(by_precision: tuple[tuple[str, float], ...]) -> Mapping[str, float]:
    """Return one shared mapping for all cards of a model."""
    return dict(by_precision)


def _why_not(gpu: ElasticGPU) -> str:
    """Return why the card takes no new work; empty if it does."""
    if gpu.metadata.deletion_timestamp is not None:
        return "is being deleted"
    if not gpu.healthy:
        return f"is unhealthy ({gpu.status.message})" if gpu.status.message else "is unhealthy"
    if gpu.spec.unschedulable:
        return CORDONED
    physical = gpu.spec.physical_gpu
    return _BY_ALLOCATOR.get(physical.allocator, "") if physical is not None else ""


def slice_allocation(gpu: ElasticGPU) -> PodAllocation:
    """Return what a slice holds of its card."""
    source = gpu.spec.slice
    assert source is not None
    share = CardShare(
        uuid=source.uuid,
        index=source.index,
        minor=source.minor,
        core=source.core,
        memory_mib=source.memory_mib,
        resident_mib=source.resident_mib,
        model=source.model,
        instance=source.instance,
    )
    container = ContainerAllocation(
        provisioner=source.provisioner, mode=source.mode, alike=source.alike, cards=(share,)
    )
    return PodAllocation(node=gpu.spec.node_name, containers={CLAIM_CONTAINER: container})
