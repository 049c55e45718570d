"""Aliyun's gpushare: memory is the unit of scheduling; programs know their share and are trusted to respect it.

This module has everything that Aliyun's own tools write or read. Pods that speak their vocabulary get it, whichever
technology serves them. It is never read back. The tools count GiB; fractions are rounded up.
"""

from collections.abc import Mapping
from typing import ClassVar, Final

from egpu.api import names
from egpu.api.allocation import ContainerDemand, PodAllocation
from egpu.api.vocabularies import ALIYUN, GIB, GPUSHARE, MIB, Vocabulary
from egpu.core.provisioners.base import Provisioner, Variable

MEMORY_UNIT: Final = "memoryUnit"
"""Class parameter: the unit of the gpushare vocabularies, "GiB" (the default) or "MiB"."""

CARD_INDEX: Final = "ALIYUN_COM_GPU_MEM_IDX"
CARD_GIB: Final = "ALIYUN_COM_GPU_MEM_DEV"
POD_GIB: Final = "ALIYUN_COM_GPU_MEM_POD"
CONTAINER_GIB: Final = "ALIYUN_COM_GPU_MEM_CONTAINER"
ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ASSUME_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"

_SPOKEN: Final = (ALIYUN.name, GPUSHARE.name)


class GPUShare(Provisioner):
    name = names.GPUSHARE
    aliases = ("gpushare.provisioner.elasticgpu.io",)
    parameters: ClassVar = {MEMORY_UNIT: ("GiB", "MiB")}

    def memory_unit_mib(self, vocabulary: Vocabulary, parameters: Mapping[str, str]) -> int:
        return MIB if parameters.get(MEMORY_UNIT) == "MiB" else GIB

    def environment(self, demand: ContainerDemand) -> tuple[Variable, ...]:
        if demand.vocabulary not in _SPOKEN:
            return ()
        written = tuple(Variable(name, annotation=name) for name in (CARD_INDEX, POD_GIB, CARD_GIB))
        return (*written, Variable(CONTAINER_GIB, value=str(_gib(demand.memory_mib))))

    def annotations(self, allocation: PodAllocation, *, assume_time_ns: int) -> dict[str, str]:
        """Describe one container: index and memory of its first card, and the memory of the whole pod. It counts as
        assigned at once, as no device plugin is left to choose a card."""
        sharing = [container for container in allocation.containers.values() if container.vocabulary in _SPOKEN]
        if not sharing:
            return {}
        first = sharing[0].cards[0]
        return {
            CARD_INDEX: str(first.index),
            CARD_GIB: str(_gib(first.card_memory_mib)),
            POD_GIB: str(_gib(sum(share.memory_mib for container in sharing for share in container.cards))),
            ASSIGNED: "true",
            ASSUME_TIME: str(assume_time_ns),
        }


def _gib(memory_mib: int) -> int:
    return -(-memory_mib // GIB)
