"""What a ResourceQuota counts of a container: percent and MiB over all its cards, whatever words it asked in.

Kubernetes counts resource names, so one quota needs one pair of them. The webhook writes `elasticgpu.io/gpu-core` and
`elasticgpu.io/gpu-memory` beside what a container asks for; the demand annotation keeps what that was. The counts are
never more than what the container takes of a node, which has as much of both as its cards together: so they keep no
pod from a node on which its cards are free. A pod that shares a claim takes nothing itself, and counts as nothing.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerDemand
from egpu.api.quantities import Quantity
from egpu.api.vocabularies import ELASTIC, profile_of
from egpu.core.provisioners import CardTotals, provisioner

COUNTED = (ELASTIC.core, ELASTIC.memory)


def counted(demand: ContainerDemand, kinds: CardTotals | None = None) -> dict[str, int]:
    """The amounts that `demand` is counted with. What it does not name is not counted: the memory of a whole card, or
    of a compute share, which count as compute.

    TFLOPS and an instance of MIG are some share of a card, and a percentage of its memory some MiB, that differ with
    the card: counted is the
    least that it can be of the cards that there are, one of each kind in `kinds` (shape (kinds,); None: not known).
    """
    if demand.shared_claim:
        return {}
    core, memory = 100 if demand.exclusive else demand.core, demand.memory_mib
    relative = demand.memory_percent or profile_of(demand.vocabulary)
    if kinds is not None and (demand.tflops or relative):
        needs = provisioner(demand.provisioner).needs(replace(demand, select=()), kinds)
        if needs.possible.any():
            core = int(needs.core[needs.possible].min())
            memory = memory or (int(needs.memory_mib[needs.possible].min()) if relative else 0)
    each = {ELASTIC.core: core, ELASTIC.memory: memory}
    return {resource: amount * demand.cards for resource, amount in each.items() if amount}


def as_asked(amounts: Mapping[str, Quantity], told: ContainerDemand) -> dict[str, Quantity]:
    """`amounts` of a container that was counted, as they were before: `told` is what its pod's demand annotation says.

    Where the counted names are those that it asked in, they were amounts of each card, and not always written.
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
