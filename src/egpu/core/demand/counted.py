"""The amounts that a ResourceQuota counts for a container: percent and MiB over all its cards, for any vocabulary.

Kubernetes counts resource names, so one quota needs one pair of them. The webhook adds `elasticgpu.io/gpu-core` and
`elasticgpu.io/gpu-memory` to a container; the demand annotation keeps the original request. The amounts never exceed
what the container takes of a node, and a node publishes as much as its cards have, and more once a slice has shrunk
(`egpu.core.placement.sums`). So they keep no pod from a node with free cards. A pod that shares a claim takes nothing
itself, and counts as nothing.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerDemand
from egpu.api.vocabularies import ELASTIC, profile_of
from egpu.core.provisioners import CardTotals, Provisioner
from egpu.core.provisioners.parking import resident_mib
from egpu_base.api.quantities import Quantity

COUNTED = (ELASTIC.core, ELASTIC.memory)


def counted(demand: ContainerDemand, technology: Provisioner, kinds: CardTotals | None = None) -> dict[str, int]:
    """Return the amounts that a quota counts for `demand`. Memory of a whole card or of a compute share is not counted,
    as it counts as compute.

    TFLOPS, an instance of MIG and a percentage of memory differ from card to card. Counted is the least amount over the
    cards of the cluster, one of each kind in `kinds` (shape (kinds,); None: unknown).
    """
    if demand.shared_claim:
        return {}
    core, memory = 100 if demand.exclusive else demand.core, demand.memory_mib
    relative = demand.memory_percent or profile_of(demand.vocabulary)
    if kinds is not None and (demand.tflops or relative):
        needs = technology.needs(replace(demand, select=()), kinds)
        if needs.possible.any():
            core = int(needs.core[needs.possible].min())
            memory = memory or (int(needs.memory_mib[needs.possible].min()) if relative else 0)
    each = {ELASTIC.core: core, ELASTIC.memory: resident_mib(demand, memory) or memory}
    return {resource: amount * demand.cards for resource, amount in each.items() if amount}


def as_asked(amounts: Mapping[str, Quantity], told: ContainerDemand) -> dict[str, Quantity]:
    """Return the original `amounts` of a container that was counted. `told` is its demand in the pod's annotation.

    If the container asked by the counted names, the original amounts were per card, and not always written.
    """
    before = {resource: value for resource, value in amounts.items() if resource not in COUNTED}
    if told.vocabulary != ELASTIC.name:
        return before
    many = 1 if names.GPU in before else told.cards
    if told.core and told.provisioner != names.PHYSICAL:
        before[ELASTIC.core] = told.core * many
    if told.memory_mib:
        before[ELASTIC.memory] = told.memory_mib * many
    return before
