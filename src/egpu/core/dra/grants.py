"""An allocated ResourceClaim as the slices that a node prepares: one for each of its requests."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.core.demand import limits
from egpu.core.dra.configuration import SliceConfig, configuration
from egpu.core.dra.devices import CORES, MEMORY
from egpu_base.api.devices import AllocatedDevice, ResourceClaim
from egpu_base.api.kubernetes import Pod
from egpu_base.api.quantities import MIB_BYTES, Quantity, parse_quantity
from egpu_base.errors import InvalidInput, InvalidQuantity, NotSupported, TerminalError

WHOLE: Final = 100
"""Percent of a card's compute."""


@dataclass(frozen=True)
class NodeCard:
    """A card of the node, as its driver reports it now."""

    uuid: str
    index: int
    minor: int
    memory_mib: int
    model: str = ""


@dataclass(frozen=True)
class Grant:
    """The slice of one request: its allocation, and the devices in the claim's status that it has."""

    request: str
    allocation: ContainerAllocation
    devices: tuple[AllocatedDevice, ...]


def ours(claim: ResourceClaim, pool: str) -> list[AllocatedDevice]:
    """Return what a claim has of our devices of `pool`, the node's name."""
    allocation = claim.status.allocation
    results = allocation.devices.results or [] if allocation is not None else []
    return [one for one in results if (one.driver, one.pool) == (names.DRIVER, pool)]


def grants(claim: ResourceClaim, pool: str, cards: Mapping[str, NodeCard]) -> list[Grant]:
    """Return the slices of an allocated claim. `cards`: the node's, by the names of their devices.

    Raises:
        TerminalError: it has no device of this node, or one that the node does not have.
        InvalidInput, NotSupported: its configuration cannot be followed.
    """
    if claim.status.allocation is None:
        raise TerminalError(f"claim {claim.key} is not allocated")
    by_request: dict[str, list[AllocatedDevice]] = {}
    for one in ours(claim, pool):
        by_request.setdefault(one.request, []).append(one)
    if not by_request:
        raise TerminalError(f"claim {claim.key}: its allocation names no device of {names.DRIVER} in pool {pool}")
    config = claim.status.allocation.devices.config or ()
    return [
        Grant(request, _allocation(claim, found, cards, configuration(config, request)), tuple(found))
        for request, found in by_request.items()
    ]


def main_request(request: str) -> str:
    """Return the name of a request without its subrequest."""
    return request.partition("/")[0]


def containers_with(pod: Pod, claim: str, request: str) -> list[str]:
    """Return the containers of a pod that get a request of the ResourceClaim of this name."""
    known = _names_in(pod, claim)
    return [
        container.name
        for container in pod.all_containers
        if container.resources is not None
        and any(
            one.name in known and one.request in ("", main_request(request)) for one in container.resources.claims or ()
        )
    ]


def _names_in(pod: Pod, claim: str) -> set[str]:
    """Return the pod's names of a ResourceClaim: its own, or that of the template it was made of."""
    listed = [*(pod.spec.resource_claims or ()), *(pod.status.resource_claim_statuses or ())]
    return {str(one.get("name")) for one in listed if one.get("resourceClaimName") == claim}


def _allocation(
    claim: ResourceClaim, found: Sequence[AllocatedDevice], cards: Mapping[str, NodeCard], config: SliceConfig
) -> ContainerAllocation:
    shares: dict[str, CardShare] = {}
    for one in found:
        share = _share(claim, one, cards)
        before = shares.get(share.uuid)
        if before is not None:  # a request of several devices may get one card more than once
            share = replace(share, core=before.core + share.core, memory_mib=before.memory_mib + share.memory_mib)
        shares[share.uuid] = share
    whole = config.technology == names.PHYSICAL
    parts = [one for one in shares.values() if (one.core, one.memory_mib) != (WHOLE, one.card_memory_mib)]
    if whole and parts:
        had = f"{parts[0].core} % and {parts[0].memory_mib} MiB of a card"
        reason = f"{names.PHYSICAL} gives whole cards only, and its claim asks for {had}; remove capacity.requests"
        raise InvalidInput(f"claim {claim.key}, request {found[0].request}", reason)
    return ContainerAllocation(
        provisioner=config.technology,
        # A whole card gets its limits too: a container may have a second claim, and then only one policy page counts.
        mode="exclusive" if whole else "shared",
        claim=claim.name,
        core_limit=limits.of_mode(config.compute_mode),
        latency=config.latency,
        memory_limit_percent=config.memory_limit_percent,
        cards=tuple(shares.values()),
    )


def _share(claim: ResourceClaim, one: AllocatedDevice, cards: Mapping[str, NodeCard]) -> CardShare:
    where = f"claim {claim.key}, request {one.request}"
    if one.admin_access:
        raise NotSupported(f"{where}: adminAccess gives a card to two users at once; remove it")
    card = cards.get(one.device)
    if card is None:
        raise TerminalError(f"{where}: device {one.device} is not a card of this node")
    consumed = {name.removeprefix(f"{names.DRIVER}/"): value for name, value in (one.consumed_capacity or {}).items()}
    core = _amount(consumed.get(CORES), where, default=WHOLE)
    memory = _amount(consumed.get(MEMORY), where, default=card.memory_mib * MIB_BYTES)
    if not 0 < core <= WHOLE or not 0 < memory <= card.memory_mib * MIB_BYTES:
        raise TerminalError(f"{where}: {float(core):g} % and {float(memory):g} bytes are no part of {one.device}")
    return CardShare(
        uuid=card.uuid,
        index=card.index,
        minor=card.minor,
        core=math.floor(core) or 1,
        memory_mib=math.floor(memory / MIB_BYTES) or 1,
        model=card.model,
        card_memory_mib=card.memory_mib,
    )


def _amount(value: Quantity | None, where: str, *, default: int) -> Fraction:
    if value is None:
        return Fraction(default)
    try:
        return parse_quantity(value, field=where)
    except InvalidQuantity as error:
        raise TerminalError(f"{where}: {error.reason}") from error
