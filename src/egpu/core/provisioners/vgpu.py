"""vGPU: fixed profiles, equal parts of a card, held by the interposer as vCUDA's slices are.

A profile 1/N is 100 // N percent of a card's compute and of its memory. Nothing of a card is cut for it, so a profile
has no place of its own there: those fit beside each other, in any order, that are one card at most together.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerDemand
from egpu.api.vocabularies import BY_NAME, VGPUS
from egpu.core.provisioners.vcuda import VCUDA

SCHEDULER: Final = "vgpuScheduler"
"""Class parameter: who of a card's vGPUs computes when, in the words of NVIDIA's vGPU; "fixed-share" by default."""
FIXED_SHARE: Final = "fixed-share"
"""Its part of the card's time, and no more."""
EQUAL_SHARE: Final = "equal-share"
"""Its part of the time of those that compute now: more than its own while others are idle."""
BEST_EFFORT: Final = "best-effort"
"""Whatever it takes; nobody is held back, and nobody is promised a part."""


class VGPU(VCUDA):
    name = names.VGPU
    aliases = ("vgpu.provisioner.elasticgpu.io",)
    oversubscribes = False  # memory is fixed
    resizable = False
    parameters: ClassVar = {SCHEDULER: (BEST_EFFORT, EQUAL_SHARE, FIXED_SHARE)}

    def problem(self, demand: ContainerDemand) -> str | None:
        if BY_NAME[demand.vocabulary].parts:
            return None
        return f"{self.name} gives out fixed profiles; ask for one of " + ", ".join(one.cards for one in VGPUS)

    def of_class(self, demand: ContainerDemand, parameters: Mapping[str, str]) -> ContainerDemand:
        scheduler = parameters.get(SCHEDULER)
        if scheduler is None or demand.exclusive:
            return demand
        core = 0 if scheduler == BEST_EFFORT else demand.core
        return replace(demand, core=core, core_limit=100 if scheduler == EQUAL_SHARE else 0)
