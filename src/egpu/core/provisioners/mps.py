"""MPS: programs of several containers run on a card at once, each on its part of the processors, with a bound on its
memory: clients of one server, which holds them to both (https://docs.nvidia.com/deploy/mps/).

The server gives the same to each of its clients, so all slices of a card have one size. A client finds one server, so
a container has one slice. What holds is of each program: two programs of a container have twice as much; and a program
that ends with a fault ends all of the card's.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, ContainerDemand, PodAllocation
from egpu.api.quantities import format_mib
from egpu.api.vocabularies import BY_NAME
from egpu.api.vocabularies import MPS as VOCABULARY
from egpu.core.attributes import CardKind
from egpu.core.provisioners.base import CardTotals, Needs, Provisioner
from egpu.core.provisioners.preparation import Preparation, ServedSlice
from egpu.core.provisioners.timeslice import COUNTS, REPLICAS

READY: Final = "ready"
"""What an agent says of a card that has a server as soon as somebody wants one; else it says why it has none."""


class MPS(Provisioner):
    name = names.MPS
    aliases = ("mps.provisioner.elasticgpu.io",)
    resizable = False  # a server takes its limits when it starts
    driver_limits = True
    parameters: ClassVar = {REPLICAS: tuple(str(number) for number in COUNTS)}

    def problem(self, demand: ContainerDemand) -> str | None:
        if demand.exclusive or demand.cards > 1:
            return f"{self.name} gives a container a part of one card; ask for {VOCABULARY.cards}, or for less"
        if demand.vocabulary == VOCABULARY.name:
            return None
        if not demand.core or demand.core_limit:
            return f"{self.name} gives a fixed percentage of a card's compute; ask for that with {names.GPU_CORE}"
        return None

    def of_class(self, demand: ContainerDemand, parameters: Mapping[str, str]) -> ContainerDemand:
        """What slices of a card have in common is their size, as it was asked for."""
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

    def unsuited(self, kind: CardKind) -> str:
        if kind.profiles or kind.mps == READY:
            return ""
        return f"has no MPS: {kind.mps or 'its agent says nothing of it'}"

    def annotations(self, allocation: PodAllocation, *, assume_time_ns: int) -> dict[str, str]:
        served = [name for name, one in allocation.containers.items() if one.provisioner == self.name]
        if not served:
            return {}
        said = f"MPS holds each program of {', '.join(sorted(served))}; a fault of one is a fault of all on its card"
        return {names.ISOLATION: said}

    def _plan(self, allocation: ContainerAllocation, minors: tuple[int, ...]) -> Preparation:
        (share,) = allocation.cards
        return Preparation(minors, served=ServedSlice(share.uuid, share.core, share.memory_mib))
