"""Names that go over the wire: groups, annotations, resources, finalizers. Data only; units are in `vocabularies`."""

from hashlib import sha256
from typing import Final

GROUP: Final = "elasticgpu.io"
STORAGE_VERSION: Final = "v1alpha1"
SERVED_VERSIONS: Final = ("v1alpha1", "v1alpha")
API_VERSION: Final = f"{GROUP}/{STORAGE_VERSION}"

# --- the one resource that the device plugin registers --------------------------------------------------------------
SLOT: Final = f"{GROUP}/slot"

# --- annotations ----------------------------------------------------------------------------------------------------
ALLOCATION: Final = f"{GROUP}/allocation"
"""On a pod, written by the Binding: which cards, how much of each (`egpu.api.allocation.PodAllocation`)."""
RESERVATION: Final = f"{GROUP}/reservation"
"""On a pod that waits, written by the extender: what is kept for it while others are evicted for it
(`egpu.core.placement.reservations.Reserved`)."""
DEMAND: Final = f"{GROUP}/demand"
"""On a pod, written by the webhook: what it asks for, normalised (`egpu.api.allocation.PodDemand`)."""
CARDS_PREFIX: Final = f"{GROUP}/cards-"
"""On a pod, written by the Binding, one per container: UUIDs joined by commas."""
CLAIM_PREFIXES: Final = (f"{GROUP}/egpuc-", f"egpuc.{GROUP}/")
"""On a pod, written by its author: prefix + container name → claim name."""
VCUDA_CORE_LIMIT: Final = "tencent.com/vcuda-core-limit"
"""On a pod, gpu-manager's: percent of a card up to which idle compute may be used."""
POOL_ADDRESS: Final = f"{GROUP}/pool-address"
"""On a node, written by its agent while the node takes part in the pool: HOST:PORT where other agents reach it."""
POOL_LINK: Final = f"{GROUP}/pool-link-mbps"
"""On such a node: how fast its network is, 0 where its kernel does not say."""

ISOLATION: Final = f"{GROUP}/isolation"
"""On a pod, written by the Binding: which of its containers nothing holds to what they were given, and why."""

INJECTION: Final = f"{GROUP}/injection"
"""On a node, written by its agent: how slots reach containers there, and why."""

GANG: Final = f"{GROUP}/gang"
"""On a pod, written by its author: the name of the group of pods that run all together or not at all. Also a label,
which the webhook adds, so that a gang's pods can be listed."""
GANG_SIZE: Final = f"{GANG}-size"
"""How many pods the gang has."""
GANG_TIMEOUT: Final = f"{GANG}-timeout"
"""How long a gang may stay bound in part before it is undone: seconds, or a number with s, m or h."""

LINKS: Final = f"{GROUP}/links"
"""On a pod, written by its author: how several cards of one container must be joined."""

CARD_SELECTOR: Final = f"{GROUP}/card-selector"
"""On a pod, written by its author: what the cards must be of containers that ask by their own resources."""
CARD_PREFERENCE: Final = f"{GROUP}/card-preference"
"""Likewise: which of the cards that fit they would rather have."""
PRELOAD: Final = f"{GROUP}/preload"
"""On a pod, written by its author: PRELOAD_ENVIRONMENT for an image that reads no /etc/ld.so.preload."""
PRELOAD_ENVIRONMENT: Final = "environment"

RESIZE_PREFIX: Final = f"{GROUP}/resize-"
"""On a pod, written by its author at any time: prefix + container name → the size its running slice shall have."""
RESIZED_PREFIX: Final = f"{GROUP}/resized-"
"""The extender's answer: that size, or why not."""
SHRINK_WITHIN: Final = f"{GROUP}/shrink-within"
"""On a pod or a claim, by its author: seconds in which to give back what is beyond a smaller size."""

CLAIM_FINALIZER: Final = f"{GROUP}/claim-protection"

# --- resources a pod or claim may name ------------------------------------------------------------------------------
NVIDIA_GPU: Final = "nvidia.com/gpu"
NVIDIA_GPU_SHARED: Final = "nvidia.com/gpu.shared"
HAMI_MEMORY: Final = "nvidia.com/gpumem"
HAMI_MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"
HAMI_CORES: Final = "nvidia.com/gpucores"
VOLCANO_NUMBER: Final = "volcano.sh/vgpu-number"
VOLCANO_MEMORY: Final = "volcano.sh/vgpu-memory"
VOLCANO_MEMORY_PERCENT: Final = "volcano.sh/vgpu-memory-percentage"
VOLCANO_CORES: Final = "volcano.sh/vgpu-cores"
ALIYUN_GPU_MEM: Final = "aliyun.com/gpu-mem"
ALIYUN_GPU_COUNT: Final = "aliyun.com/gpu-count"
TENCENT_VCUDA_CORE: Final = "tencent.com/vcuda-core"
TENCENT_VCUDA_MEMORY: Final = "tencent.com/vcuda-memory"
DOCKER_VCUDA_CORE: Final = "docker.com/vcuda-core"
DOCKER_VCUDA_MEMORY: Final = "docker.com/vcuda-memory"
QGPU_CORE: Final = "tke.cloud.tencent.com/qgpu-core"
QGPU_MEMORY: Final = "tke.cloud.tencent.com/qgpu-memory"
GPUSHARE_CORE: Final = "gpushare.provisioner.elasticgpu.io/gpu-core"
GPUSHARE_MEMORY: Final = "gpushare.provisioner.elasticgpu.io/gpu-memory"
POOL_CORE: Final = f"{GROUP}/pool-core"
POOL_MEMORY: Final = f"{GROUP}/pool-memory"
GPU_CORE: Final = f"{GROUP}/gpu-core"
GPU_MEMORY: Final = f"{GROUP}/gpu-memory"
GPU: Final = f"{GROUP}/gpu"
TFLOPS: Final = f"{GROUP}/tflops"
MIG_PREFIX: Final = "nvidia.com/mig-"
"""As NVIDIA's device plugin names instances of MIG: the profile follows, "." in the place of "+"."""

# --- what NVIDIA's container runtime reads ----------------------------------------------------------------------------
NVIDIA_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES: Final = "void"
"""Its value that makes NVIDIA's container runtime leave a container alone."""

# --- provisioners ---------------------------------------------------------------------------------------------------
PHYSICAL: Final = f"{GROUP}/physical"
GPUSHARE: Final = f"{GROUP}/gpushare"
VCUDA: Final = f"{GROUP}/vcuda"
QGPU: Final = f"{GROUP}/qgpu"
VGPU: Final = f"{GROUP}/vgpu"
TIMESLICE: Final = f"{GROUP}/timeslice"
POOL: Final = f"{GROUP}/pool"
MIG: Final = f"{GROUP}/mig"
MPS: Final = f"{GROUP}/mps"
"""Also the resource by whose name pods ask for a slice of it."""

# --- bounds: what no pod of this world asks for, so that a typing error is refused rather than pending forever -------
MAX_CARDS_PER_CONTAINER: Final = 64
MAX_MEMORY_MIB: Final = 16 * 1024 * 1024
"""16 TiB on one card."""
MAX_TFLOPS: Final = 1_000_000
MAX_GANG_SIZE: Final = 512
MAX_GANG_TIMEOUT_SECONDS: Final = 7 * 24 * 3600
MAX_SHRINK_SECONDS: Final = 7 * 24 * 3600


def cards_annotation(container: str) -> str:
    """Name of the annotation that lists the UUIDs granted to `container`.

    A container's name may have 63 characters, and so may an annotation's after the slash: long names are shortened,
    with a digest to keep them apart.
    """
    room = 63 - len("cards-")
    if len(container) > room:
        digest = sha256(container.encode()).hexdigest()[:8]
        container = f"{container[: room - 9]}-{digest}"
    return CARDS_PREFIX + container
