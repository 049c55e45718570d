"""Time slicing: a card has a number of replicas, and the driver gives it to their programs in turn, as in NVIDIA's
device plugin (https://github.com/NVIDIA/k8s-device-plugin, "Shared access to GPUs").

There is no isolation: each program sees the whole card, and can take all of its memory. A replica counts as its part of
the card's compute and memory, so a card has no more replicas than the class says.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, ContainerDemand, PodAllocation
from egpu.api.vocabularies import BY_NAME, TIMESLICE
from egpu.core.provisioners.base import Provisioner

REPLICAS: Final = "replicas"
"""Class parameter: the number of containers that share a card."""
COUNTS: Final = tuple(number for number in range(2, 51) if 100 // (100 // number) == number)
"""The counts that give whole percents: with parts rounded down, exactly so many fit on a card."""
TIME_SLICE: Final = "timeSlice"
"""Class parameter: how long a program keeps the card while others wait; "default" is the driver's value."""
DEFAULT: Final = "default"
LENGTHS: Final = (DEFAULT, "short", "medium", "long")
"""In the order of `nvidia-smi compute-policy --set-timeslice`."""


class TimeSlice(Provisioner):
    name = names.TIMESLICE
    aliases = ("timeslice.provisioner.elasticgpu.io",)
    resizable = False
    parameters: ClassVar = {REPLICAS: tuple(str(number) for number in COUNTS), TIME_SLICE: LENGTHS}

    def problem(self, demand: ContainerDemand) -> str | None:
        if BY_NAME[demand.vocabulary].parts and BY_NAME[demand.vocabulary].provisioner == self.name:
            return None
        return f"{self.name} provides replicas of cards, not amounts; ask for {TIMESLICE.cards}"

    def of_class(self, demand: ContainerDemand, parameters: Mapping[str, str]) -> ContainerDemand:
        part = 100 // int(parameters.get(REPLICAS, BY_NAME[demand.vocabulary].parts))
        length = parameters.get(TIME_SLICE, DEFAULT)
        return replace(demand, core=part, memory_percent=part, alike="" if length == DEFAULT else length)

    def annotations(self, allocation: PodAllocation, *, assume_time_ns: int) -> dict[str, str]:
        free = [name for name, one in allocation.containers.items() if one.provisioner == self.name]
        if not free:
            return {}
        return {names.ISOLATION: f"none of {', '.join(sorted(free))}: time slices isolate neither memory nor faults"}

    def time_slice(self, allocation: ContainerAllocation) -> str:
        return allocation.alike
