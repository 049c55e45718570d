"""ResourceClaims as holders of cards in a ledger, for display: no placement counts with them."""

from collections.abc import Iterable

from egpu.api import names
from egpu.api.allocation import PodAllocation
from egpu.api.objects import ElasticGPU
from egpu.core.dra.devices import device_name
from egpu.core.dra.grants import NodeCard, grants
from egpu.core.placement.ledger import Holder, Ledger
from egpu_base.api.devices import ResourceClaim
from egpu_base.errors import TerminalError


def hold(claim: ResourceClaim, gpus: Iterable[ElasticGPU], ledger: Ledger) -> bool:
    """Hold the cards of a claim; return whether it has any. A claim that its node refuses holds nothing."""
    results = claim.status.allocation.devices.results or [] if claim.status.allocation is not None else []
    pools = {one.pool for one in results if one.driver == names.DRIVER}
    if len(pools) != 1:  # a claim with none of our devices: those of one node only may be allocated together
        return False
    (node,) = pools
    cards = {
        device_name(card.uuid): NodeCard(card.uuid, card.index, card.minor, card.memory_mib, card.model)
        for gpu in gpus
        if gpu.spec.node_name == node and (card := gpu.spec.physical_gpu) is not None
    }
    try:
        containers = {grant.request: grant.allocation for grant in grants(claim, node, cards)}
    except TerminalError:
        return False
    ledger.hold(Holder("claim", claim.uid), PodAllocation(node=node, containers=containers))
    return True
