"""The resource names of each sharing technology, and the unit each of them counts in.

One table; the demand parser, the webhook's match conditions and the node's published capacity are all made from it.
"""

from typing import Final

import msgspec

from egpu.api import names

MIB: Final = 1
GIB: Final = 1024
VCUDA_BLOCK: Final = 256
"""MiB per unit of `*/vcuda-memory`."""


class Vocabulary(msgspec.Struct, frozen=True):
    """The resource names of one technology.

    `core` counts percent of a card; `memory` counts `memory_unit_mib` each; `cards` counts whole cards; `tflops` counts
    TFLOPS. An empty string means that the vocabulary has no such name. `provisioner` serves a pod that names no class.
    """

    name: str
    provisioner: str
    core: str = ""
    memory: str = ""
    cards: str = ""
    tflops: str = ""
    memory_unit_mib: int = MIB
    node_only: str = ""
    """A name that nodes publish and pods must not ask for."""

    def resources(self) -> tuple[str, ...]:
        """Every name a pod may ask for."""
        return tuple(name for name in (self.core, self.memory, self.cards, self.tflops) if name)


NVIDIA: Final = Vocabulary(name="nvidia", provisioner=names.PHYSICAL, cards=names.NVIDIA_GPU)
ALIYUN: Final = Vocabulary(
    name="aliyun",
    provisioner=names.GPUSHARE,
    memory=names.ALIYUN_GPU_MEM,
    memory_unit_mib=GIB,
    node_only=names.ALIYUN_GPU_COUNT,
)
TENCENT: Final = Vocabulary(
    name="tencent",
    provisioner=names.VCUDA,
    core=names.TENCENT_VCUDA_CORE,
    memory=names.TENCENT_VCUDA_MEMORY,
    memory_unit_mib=VCUDA_BLOCK,
)
DOCKER: Final = Vocabulary(
    name="docker",
    provisioner=names.VCUDA,
    core=names.DOCKER_VCUDA_CORE,
    memory=names.DOCKER_VCUDA_MEMORY,
    memory_unit_mib=VCUDA_BLOCK,
)
QGPU: Final = Vocabulary(
    name="qgpu",
    provisioner=names.QGPU,
    core=names.QGPU_CORE,
    memory=names.QGPU_MEMORY,
    memory_unit_mib=GIB,
)
GPUSHARE: Final = Vocabulary(
    name="gpushare",
    provisioner=names.GPUSHARE,
    core=names.GPUSHARE_CORE,
    memory=names.GPUSHARE_MEMORY,
    memory_unit_mib=GIB,
)
POOL: Final = Vocabulary(name="pool", provisioner=names.POOL, core=names.POOL_CORE, memory=names.POOL_MEMORY)
ELASTIC: Final = Vocabulary(
    name="elasticgpu",
    provisioner=names.VCUDA,
    core=names.GPU_CORE,
    memory=names.GPU_MEMORY,
    cards=names.GPU,
    tflops=names.TFLOPS,
)

VOCABULARIES: Final = (NVIDIA, ALIYUN, TENCENT, DOCKER, QGPU, GPUSHARE, POOL, ELASTIC)
BY_NAME: Final = {vocabulary.name: vocabulary for vocabulary in VOCABULARIES}
BY_RESOURCE: Final = {resource: vocabulary for vocabulary in VOCABULARIES for resource in vocabulary.resources()}
POD_RESOURCES: Final = tuple(BY_RESOURCE)
"""Every resource name by which a pod asks for a GPU (`elasticgpu.io/slot` is not one: the webhook adds it)."""
