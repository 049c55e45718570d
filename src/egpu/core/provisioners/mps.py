"""MPS: programs of several containers run on a card at once, each on its part of the processors and with a memory
limit, as clients of one server that enforces both (https://docs.nvidia.com/deploy/mps/).

The server gives the same share to each client, so all slices of a card have one size. A client finds one server, so a
container has one slice. Limits are per program: two programs of a container have twice as much. A program that ends
with a fault ends all programs on the card.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, ContainerDemand, PodAllocation
from egpu.api.vocabularies import BY_NAME
from egpu.api.vocabularies import MPS as VOCABULARY
from egpu.core.attributes import CardKind
from egpu.core.provisioners.base import CardTotals, Needs, NodeTotals, Provisioner
from egpu.core.provisioners.preparation import Preparation, ServedSlice
from egpu.core.provisioners.timeslice import COUNTS, REPLICAS
from egpu_base.api.quantities import format_mib

READY: Final = "ready"
"""Published by an agent for a card that gets a server on demand; otherwise it publishes why not."""


class MPS(Provisioner):
    name = names.MPS
    aliases = ("mps.provisioner.elasticgpu.io",)
    resizable = False  # a server reads its limits at its start
    driver_limits = True
    caution = (
        "programs on one card share memory with their MPS server, and a fault of one ends all: use this class for "
        "programs that trust each other, and elasticgpu.io/qgpu or elasticgpu.io/mig for others"
    )
    parameters: ClassVar = {REPLICAS: tuple(str(number) for number in COUNTS)}

    def problem(self, demand: ContainerDemand) -> str | None:
        if demand.exclusive or demand.cards > 1:
            return f"{self.name} provides a part of one card; ask for {VOCABULARY.cards}, or for less"
        if demand.vocabulary == VOCABULARY.name:
            return None
        if not demand.core or demand.core_limit:
            return f"{self.name} provides a fixed percentage of a card's compute; ask for it with {names.GPU_CORE}"
        return None

    def of_class(self, demand: ContainerDemand, parameters: Mapping[str, str]) -> ContainerDemand:
        """Set what all slices of a card must share: their requested size."""
        if demand.vocabulary != VOCABULARY.name:
            memory = format_mib(demand.memory_mib) if demand.memory_mib else f"{demand.memory_percent or demand.core} %"
            return replace(demand, alike=f"{demand.core} % and {memory}")
        usual = BY_NAME[demand.vocabulary].parts
        replicas = int(parameters.get(REPLICAS, usual))
        part = 100 // replicas
        alike = "" if replicas == usual else f"1/{replicas}"
        return replace(demand, core=part, memory_percent=part, alike=alike)

    def needs(self, demand: ContainerDemand, cards: CardTotals) -> Needs:
        needs = super().needs(demand, cards)
        return Needs(needs.core, needs.memory_mib, needs.possible & cards.where(lambda kind: not self.unsuited(kind)))

    def capacity(self, node: NodeTotals) -> dict[str, int]:
        """Publish slices of the cards that can have a server, also if these are none: the name may stand there from
        before."""
        return {VOCABULARY.cards: VOCABULARY.slices_per_card * node.mps_cards}

    def unsuited(self, kind: CardKind) -> str:
        if kind.profiles or kind.mps == READY:
            return ""
        return f"has no MPS: {kind.mps or 'its agent does not report it'}"

    def annotations(self, allocation: PodAllocation, *, assume_time_ns: int) -> dict[str, str]:
        served = [name for name, one in allocation.containers.items() if one.provisioner == self.name]
        if not served:
            return {}
        said = f"MPS limits each program of {', '.join(sorted(served))}; a fault of one ends all programs on its card"
        return {names.ISOLATION: said}

    def _plan(self, allocation: ContainerAllocation, minors: tuple[int, ...]) -> Preparation:
        (share,) = allocation.cards
        return Preparation(minors, served=ServedSlice(share.uuid, share.core, share.memory_mib))
