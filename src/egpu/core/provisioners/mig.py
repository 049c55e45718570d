"""MIG: instances that the card itself keeps apart, each with memory, compute and faults of its own.

Only cards in MIG mode have any, and nothing else can be done with those: so none ever has two technologies. The mode
is the administrator's to set (`nvidia-smi -mig 1`), because most cards are reset for it. An instance that is there and
free is given out before the node's agent makes one.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import numpy as np
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, ContainerDemand
from egpu.api.mig import InstanceProfile
from egpu.api.vocabularies import MIGS, profile_of
from egpu.core.arrays import BoolArray, IntArray
from egpu.core.mig import WantedInstance, core_percent, enough
from egpu.core.provisioners.base import CardTotals, Needs, NodeTotals, Provisioner
from egpu.core.provisioners.preparation import CardInstance, Preparation
from egpu.errors import TerminalError

REPARTITION: Final = "repartition"
"""Class parameter: whether instances may be made and destroyed for its claims."""
ALLOWED: Final = "allowed"
"""Around those in use, and those that somebody else made; the default."""
NEVER: Final = "never"
"""Only what is there is given out."""


class MIG(Provisioner):
    name = names.MIG
    aliases = ("mig.provisioner.elasticgpu.io",)
    resizable = False  # an instance in use cannot be changed
    shareable = True
    parameters: ClassVar = {REPARTITION: (ALLOWED, NEVER)}

    def problem(self, demand: ContainerDemand) -> str | None:
        if demand.exclusive:
            return f"{self.name} gives out instances; ask for one such as {MIGS[0].cards}, or for less than a card"
        if demand.cards > 1:
            return "a program sees one instance; ask for one in each container"
        if demand.tflops or demand.memory_percent:
            return f"{self.name} gives out instances by profile, or by percent of compute and MiB"
        return None

    def of_class(self, demand: ContainerDemand, parameters: Mapping[str, str]) -> ContainerDemand:
        return replace(demand, repartition=parameters.get(REPARTITION) != NEVER)

    def needs(self, demand: ContainerDemand, cards: CardTotals) -> Needs:
        """The profile that is asked for, or the smallest that has as much, on each kind of card; its compute in percent
        of the card, rounded down, and its memory. Where the smallest finds no place, a larger one takes more."""
        core: IntArray = np.zeros_like(cards.memory_mib)
        memory: IntArray = np.zeros_like(cards.memory_mib)
        possible: BoolArray = np.zeros(cards.memory_mib.shape, dtype=np.bool_)
        wanted: dict[int, WantedInstance] = {}
        for number, kind in enumerate(cards.kinds):
            fitting = _profiles(demand, kind.profiles)
            if fitting and cards.kind is not None:
                here = cards.kind == number
                core[here] = core_percent(kind.profiles, fitting[0])
                memory[here] = fitting[0].memory_mib
                possible |= here
                first, *larger = (each.name for each in fitting)
                wanted[number] = WantedInstance(first, demand.repartition, tuple(larger))
        return Needs(core, memory, possible & cards.selected(demand), wanted)

    def capacity(self, node: NodeTotals) -> dict[str, int]:
        """What quotas count is counted of these cards too."""
        if not node.cut_cards:
            return {}
        instances = {one.cards: node.instances[one.profile] for one in MIGS if one.profile in node.instances}
        core, memory = 100 * (node.cards + node.cut_cards), node.memory_mib + node.cut_memory_mib
        return {**instances, names.GPU_CORE: core, names.GPU_MEMORY: memory}

    def visible_devices(self, allocation: ContainerAllocation) -> str:
        """Nothing: by the card's UUID NVIDIA's runtime would bring all of its instances. The agent says which it is."""
        return names.NO_DEVICES

    def _plan(self, allocation: ContainerAllocation, minors: tuple[int, ...]) -> Preparation:
        (share,) = allocation.cards
        if share.instance is None:
            raise TerminalError(f"the allocation names no instance of card {share.uuid}; its binding should have")
        return Preparation(minors, instance=CardInstance(share.uuid, share.instance))


def _profiles(demand: ContainerDemand, profiles: Sequence[InstanceProfile]) -> list[InstanceProfile]:
    """Those that will do for `demand`, of those that a card has: the one that it names, or all with as much as it
    asks for, the smallest first."""
    named = profile_of(demand.vocabulary)
    if not named:
        return enough(profiles, demand.core, demand.memory_mib)
    return [one for one in profiles if one.name == named]
