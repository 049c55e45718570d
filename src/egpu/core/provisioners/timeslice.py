"""Time slicing: a card has so many replicas, and the driver gives it to their programs in turn, as NVIDIA's device
plugin has it (https://github.com/NVIDIA/k8s-device-plugin, "Shared access to GPUs").

Nothing holds a program to anything: each sees the whole card, and can take all of its memory. A replica counts for its
part of the card's compute and memory, so that there are no more than the class says.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, ContainerDemand, PodAllocation
from egpu.api.vocabularies import BY_NAME, TIMESLICE
from egpu.core.provisioners.base import Provisioner

REPLICAS: Final = "replicas"
"""Class parameter: how many containers share a card."""
COUNTS: Final = tuple(number for number in range(2, 51) if 100 // (100 // number) == number)
"""Those that come out in whole percent: of parts rounded down, no more fit on a card than so many."""
TIME_SLICE: Final = "timeSlice"
"""Class parameter: how long a program keeps the card while others wait for it; "default" is what the driver has."""
DEFAULT: Final = "default"
LENGTHS: Final = (DEFAULT, "short", "medium", "long")
"""In the order in which `nvidia-smi compute-policy --set-timeslice` counts them."""


class TimeSlice(Provisioner):
    name = names.TIMESLICE
    aliases = ("timeslice.provisioner.elasticgpu.io",)
    resizable = False
    parameters: ClassVar = {REPLICAS: tuple(str(number) for number in COUNTS), TIME_SLICE: LENGTHS}

    def problem(self, demand: ContainerDemand) -> str | None:
        if BY_NAME[demand.vocabulary].parts and BY_NAME[demand.vocabulary].provisioner == self.name:
            return None
        return f"{self.name} gives out replicas of cards, not amounts; ask for {TIMESLICE.cards}"

    def of_class(self, demand: ContainerDemand, parameters: Mapping[str, str]) -> ContainerDemand:
        part = 100 // int(parameters.get(REPLICAS, BY_NAME[demand.vocabulary].parts))
        length = parameters.get(TIME_SLICE, DEFAULT)
        return replace(demand, core=part, memory_percent=part, alike="" if length == DEFAULT else length)

    def annotations(self, allocation: PodAllocation, *, assume_time_ns: int) -> dict[str, str]:
        free = [name for name, one in allocation.containers.items() if one.provisioner == self.name]
        if not free:
            return {}
        return {names.ISOLATION: f"none of {', '.join(sorted(free))}: time slices hold neither memory nor faults apart"}

    def time_slice(self, allocation: ContainerAllocation) -> str:
        return allocation.alike
