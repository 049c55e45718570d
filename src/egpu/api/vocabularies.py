"""The resource names of each sharing technology, and the unit of each name.

The demand parser, the webhook's match conditions and the capacity of nodes all use this one table.
"""

from enum import Enum
from typing import Final

import msgspec

from egpu.api import names

MIB: Final = 1
GIB: Final = 1024
VCUDA_BLOCK: Final = 256
"""MiB per unit of `*/vcuda-memory`."""


class Vocabulary(msgspec.Struct, frozen=True):
    """The resource names of one technology.

    `core`: percent of a card. `memory`: units of `memory_unit_mib`. `memory_percent`: percent of a card's memory.
    `cards`: whole cards. `tflops`: TFLOPS. An empty string: the vocabulary has no such name. `provisioner`: the
    technology that serves a pod without a class.
    """

    name: str
    provisioner: str
    core: str = ""
    memory: str = ""
    cards: str = ""
    tflops: str = ""
    memory_unit_mib: int = MIB
    memory_percent: str = ""
    node_only: str = ""
    """A name that nodes publish and pods must not request."""
    per_card: bool = False
    """True if amounts are per card: one card by default, and all its memory by default."""
    slices_per_card: int = 1
    """The number of times that a node counts a card in `cards`: more than once if the name counts slices too."""
    parts: int = 0
    """The number of equal parts of a card that `cards` counts; 0: it does not count parts."""
    profile: str = ""
    """The MIG profile whose instances `cards` counts; "" for none."""
    single: bool = False
    """True if a container can have only one."""
    optional: bool = False
    """True if an administrator must turn it on, because it changes the meaning of another project's name."""
    takes_over: bool = False
    """True if its meaning wins, once turned on, even if another vocabulary has all of the names."""

    def resources(self) -> tuple[str, ...]:
        """Return every name that a pod may request."""
        said = (self.core, self.memory, self.memory_percent, self.cards, self.tflops)
        return tuple(name for name in said if name)


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
SLICES_PER_CARD: Final = 10
"""The slices of a card that HAMi and Volcano count on a node by default."""
HAMI: Final = Vocabulary(
    name="hami",
    provisioner=names.VCUDA,
    core=names.HAMI_CORES,
    memory=names.HAMI_MEMORY,
    memory_percent=names.HAMI_MEMORY_PERCENT,
    cards=names.NVIDIA_GPU,
    per_card=True,
    slices_per_card=SLICES_PER_CARD,
    optional=True,
)
VOLCANO: Final = Vocabulary(
    name="volcano",
    provisioner=names.VCUDA,
    core=names.VOLCANO_CORES,
    memory=names.VOLCANO_MEMORY,
    memory_percent=names.VOLCANO_MEMORY_PERCENT,
    cards=names.VOLCANO_NUMBER,
    per_card=True,
    slices_per_card=SLICES_PER_CARD,
)

VGPUS: Final = tuple(
    Vocabulary(
        name=f"vgpu-{parts}",
        provisioner=names.VGPU,
        cards=f"{names.VGPU}-{parts}",
        slices_per_card=parts,
        parts=parts,
    )
    for parts in (1, 2, 3, 4, 6, 8)
)
"""One per fixed profile: `elasticgpu.io/vgpu-4` is a quarter of a card."""

VGPU_PROFILES: Final = Vocabulary(name="vgpu", provisioner=names.VGPU)
"""The profiles that a class defines. Only its claims know them, so pods have no names in it."""

REPLICAS: Final = 4
"""Containers that share a card by time slicing or MPS, by default."""
TIMESLICE: Final = Vocabulary(
    name="timeslice",
    provisioner=names.TIMESLICE,
    cards=names.NVIDIA_GPU_SHARED,
    slices_per_card=REPLICAS,
    parts=REPLICAS,
)
MPS: Final = Vocabulary(
    name="mps",
    provisioner=names.MPS,
    cards=names.MPS,
    slices_per_card=REPLICAS,
    parts=REPLICAS,
    single=True,
)

SHARED_CARDS: Final = Vocabulary(
    name="nvidia-shared",
    provisioner=names.TIMESLICE,
    cards=names.NVIDIA_GPU,
    slices_per_card=REPLICAS,
    parts=REPLICAS,
    optional=True,
    takes_over=True,
)
"""`nvidia.com/gpu` as in NVIDIA's device plugin with replicas and without `renameByDefault`."""

_MIG_PROFILES: Final = """
    1g.5gb 1g.5gb+me 1g.6gb 1g.6gb+me 1g.10gb 1g.10gb+me 1g.11gb 1g.12gb 1g.12gb+me 1g.18gb 1g.18gb+me 1g.20gb 1g.22gb
    1g.23gb 1g.23gb+me 1g.24gb 1g.24gb+me 1g.34gb 1g.34gb+me 1g.35gb 1g.45gb 1g.67gb 2g.10gb 2g.12gb 2g.12gb+me 2g.20gb
    2g.22gb 2g.24gb 2g.35gb 2g.45gb 2g.48gb 2g.67gb 3g.20gb 3g.40gb 3g.44gb 3g.47gb 3g.48gb 3g.71gb 3g.90gb 3g.135gb
    4g.20gb 4g.24gb 4g.40gb 4g.44gb 4g.47gb 4g.48gb 4g.71gb 4g.90gb 4g.96gb 4g.135gb 7g.40gb 7g.80gb 7g.87gb 7g.94gb
    7g.96gb 7g.141gb 7g.180gb 7g.269gb
"""
"""Names only (NVIDIA's MIG user guide, "Supported MIG Profiles"); each card's driver reports the sizes."""
MIGS: Final = tuple(
    Vocabulary(
        name=f"mig-{profile}",
        provisioner=names.MIG,
        cards=names.MIG_PREFIX + profile.replace("+", "."),
        profile=profile,
        single=True,
    )
    for profile in _MIG_PROFILES.split()
)
"""One per MIG profile: `nvidia.com/mig-1g.10gb` is an instance of that profile."""

VOCABULARIES: Final = (
    NVIDIA,
    ALIYUN,
    TENCENT,
    DOCKER,
    QGPU,
    GPUSHARE,
    POOL,
    ELASTIC,
    VOLCANO,
    HAMI,
    *VGPUS,
    VGPU_PROFILES,
    TIMESLICE,
    SHARED_CARDS,
    MPS,
    *MIGS,
)
"""The first one that has all names of a container applies."""
OPTIONAL: Final = tuple(vocabulary.name for vocabulary in VOCABULARIES if vocabulary.optional)
BY_NAME: Final = {vocabulary.name: vocabulary for vocabulary in VOCABULARIES}
BY_RESOURCE: Final = {
    resource: vocabulary for vocabulary in reversed(VOCABULARIES) for resource in vocabulary.resources()
}


def profile_of(vocabulary: str) -> str:
    """Return the MIG profile of a vocabulary, by name; "" for none."""
    return BY_NAME[vocabulary].profile if vocabulary in BY_NAME else ""


class Zero(Enum):
    """The meaning of a zero amount of a resource."""

    NO_GPU = "no GPU: the container gets none from this vocabulary, whatever other names of it ask for"
    UNSAID = "as if the name were not there; a container with only such zeros gets no GPU"
    NO_LIMIT = "no limit of it, and a card also without a name that counts cards"


_HAMI_LIMITS: Final = frozenset({HAMI.core, HAMI.memory, HAMI.memory_percent})
_COUNTS: Final = frozenset({ALIYUN.memory, ALIYUN.node_only, *(one.cards for one in VOCABULARIES if one.cards)})
ZEROS: Final = {
    resource: Zero.NO_GPU if resource in _COUNTS else Zero.NO_LIMIT if resource in _HAMI_LIMITS else Zero.UNSAID
    for resource in (*BY_RESOURCE, ALIYUN.node_only)
}
"""The meaning of zero for each name, as in its own project.

HAMi's admission adds a card to a container that names any amount, and reads 0 as the default: no limit of compute, all
memory. gpushare serves no pod with `aliyun.com/gpu-mem: 0`."""

POD_RESOURCES: Final = tuple(BY_RESOURCE)
"""Every resource name that requests a GPU, except `elasticgpu.io/slot`, which the webhook adds."""
