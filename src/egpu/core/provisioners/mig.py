"""MIG: instances that the card itself isolates, each with its own memory, compute and faults.

Only cards in MIG mode have instances, and nothing else can use such cards, so none ever has two technologies. The
administrator sets the mode (`nvidia-smi -mig 1`), as most cards must be reset for it. Existing free instances are used
before the node's agent creates one.
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
from egpu_base.errors import TerminalError

REPARTITION: Final = "repartition"
"""Class parameter: whether instances may be created and destroyed for its claims."""
ALLOWED: Final = "allowed"
"""Create and destroy instances around those in use and those created by others; the default."""
NEVER: Final = "never"
"""Use existing instances only."""


class MIG(Provisioner):
    name = names.MIG
    aliases = ("mig.provisioner.elasticgpu.io",)
    resizable = False  # an instance in use cannot change
    shareable = True
    parameters: ClassVar = {REPARTITION: (ALLOWED, NEVER)}

    def problem(self, demand: ContainerDemand) -> str | None:
        if demand.exclusive:
            return f"{self.name} provides MIG instances; ask for one such as {MIGS[0].cards}, or for less than a card"
        if demand.cards > 1:
            return "a program can use one MIG instance only; ask for one in each container"
        if demand.tflops or demand.memory_percent:
            return f"{self.name} provides MIG instances by profile, or by percent of compute and MiB"
        return None

    def of_class(self, demand: ContainerDemand, parameters: Mapping[str, str]) -> ContainerDemand:
        return replace(demand, repartition=parameters.get(REPARTITION) != NEVER)

    def needs(self, demand: ContainerDemand, cards: CardTotals) -> Needs:
        """Return the requested profile, or the smallest with enough of everything, on each kind of card, with its
        compute in percent of the card, rounded down, and its memory. A larger one may take more if the smallest has no
        place."""
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
        """Include these cards in the amounts that quotas count."""
        if not node.cut_cards:
            return {}
        instances = {one.cards: node.instances[one.profile] for one in MIGS if one.profile in node.instances}
        core, memory = 100 * (node.cards + node.cut_cards), node.memory_mib + node.cut_memory_mib
        return {**instances, names.GPU_CORE: core, names.GPU_MEMORY: memory}

    def visible_devices(self, allocation: ContainerAllocation) -> str:
        """Return no device: by a card's UUID NVIDIA's runtime adds all instances. The agent adds the right one."""
        return names.NO_DEVICES

    def _plan(self, allocation: ContainerAllocation, minors: tuple[int, ...]) -> Preparation:
        (share,) = allocation.cards
        if share.instance is None:
            raise TerminalError(f"the allocation names no MIG instance of card {share.uuid}")
        return Preparation(minors, instance=CardInstance(share.uuid, share.instance))


def _profiles(demand: ContainerDemand, profiles: Sequence[InstanceProfile]) -> list[InstanceProfile]:
    """Return the profiles of a card that serve `demand`: the named one, or all with enough, the smallest first."""
    named = profile_of(demand.vocabulary)
    if not named:
        return enough(profiles, demand.core, demand.memory_mib)
    return [one for one in profiles if one.name == named]
