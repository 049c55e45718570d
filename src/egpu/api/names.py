"""Names on the wire: groups, annotations, resources, finalizers. Data only; units are in `vocabularies`."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

GROUP: Final = "elasticgpu.io"
STORAGE_VERSION: Final = "v1alpha1"
SERVED_VERSIONS: Final = ("v1alpha1", "v1alpha")
API_VERSION: Final = f"{GROUP}/{STORAGE_VERSION}"

# --- the one resource that the device plugin registers --------------------------------------------------------------
SLOT: Final = f"{GROUP}/slot"

# --- a line of quotas that the extender counts ----------------------------------------------------------------------
PARKING_QUOTA: Final = f"requests.{GROUP}/parking-memory"
"""MiB of nodes' own memory that slices of the namespace may need while they are parked."""

# --- annotations ----------------------------------------------------------------------------------------------------
ALLOCATION: Final = f"{GROUP}/allocation"
"""On a pod, written by the Binding: its shares of cards (`egpu.api.allocation.PodAllocation`)."""
PARK_REQUEST: Final = f"{GROUP}/park-request"
"""On a pod, written by anybody who may change it: a number that grows. A new odd one asks its programs to leave the
card while they are idle, a new even one to come back."""
STAY_RESIDENT: Final = f"{GROUP}/stay-resident"
"""On a pod, written by anybody who may change it: "true" keeps its memory on the card,
whoever needs the room, if the class has the parameter parkingStay."""
PARKING_MEMORY: Final = f"{GROUP}/parking-memory-mib"
"""On a node, written by its agent: how much of the node's own memory parked slices may take."""
THRASHING_CARDS: Final = f"{GROUP}/thrashing-cards"
"""On a node, written by its agent: the UUIDs of cards whose slices share room and wait for each other most of the time,
with commas between them."""
RESERVATION: Final = f"{GROUP}/reservation"
"""On a waiting pod, written by the extender: the cards reserved for it while other pods are evicted
(`egpu.core.placement.reservations.Reserved`)."""
REMADE: Final = f"{GROUP}/remade"
"""On a pod, written by the controller: how often a kubelet refused the pod for lack of room, so that it was made
again."""
DEMAND: Final = f"{GROUP}/demand"
"""On a pod, written by the webhook: what it asks for, normalised (`egpu.api.allocation.PodDemand`)."""
CARDS_PREFIX: Final = f"{GROUP}/cards-"
"""On a pod, written by the Binding, one per container: card UUIDs, separated by commas."""
CLAIM_PREFIXES: Final = (f"{GROUP}/egpuc-", f"egpuc.{GROUP}/")
"""On a pod, written by its author: prefix + container name → claim name. The second form has room for names of up to 63
characters, the first for 57."""
CLAIM_TEMPLATE_PREFIX: Final = f"egpuc-template.{GROUP}/"
"""On a pod, written by its author: prefix + container name → the spec of an ElasticGPUClaim, in JSON. The webhook names
a new claim, and the controller makes it. The claim ends with the pod."""
GPU_CORE_LIMIT: Final = f"{GROUP}/gpu-core-limit"
"""On a pod, written by its author: percent of a card up to which its containers may use idle compute."""
VCUDA_CORE_LIMIT: Final = "tencent.com/vcuda-core-limit"
"""On a pod, from gpu-manager: percent of a card up to which idle compute may be used."""
POOL_ADDRESS: Final = f"{GROUP}/pool-address"
"""On a node of the pool, written by its agent: HOST:PORT where other agents reach it."""
POOL_LINK: Final = f"{GROUP}/pool-link-mbps"
"""On a node of the pool: the speed of its network; 0 if the kernel does not report it."""

ISOLATION: Final = f"{GROUP}/isolation"
"""On a pod, written by the Binding: its containers without isolation, and why."""

INJECTION: Final = f"{GROUP}/injection"
"""On a node, written by its agent: how slots reach containers on it, and why."""

ALLOCATOR: Final = f"{GROUP}/allocator"
"""A label on a node, written by the administrator: "dra" if kube-scheduler gives its cards to claims of
resource.k8s.io; "priced" if the extender gives them to pods and to such claims; "device-plugin", as without the label,
if the extender gives them to pods only."""

GANG: Final = f"{GROUP}/gang"
"""On a pod, written by its author: the name of a group of pods that run all together or not at all. Also a label, added
by the webhook, to list a gang's pods."""
GANG_SIZE: Final = f"{GANG}-size"
"""The number of pods of the gang, or of its smallest part that is placed at once, with `+` behind it."""
GANG_TIMEOUT: Final = f"{GANG}-timeout"
"""The time that only a part of a gang may be bound before its pods are deleted: seconds, a number with s, m or h, or
`never`."""
GANG_FROM: Final = f"{GANG}-from"
"""On a pod, written by its author: `owner` to place all pods of its JobSet, LeaderWorkerSet, RayCluster or training job
at once, or none."""
GANG_FROM_OWNER: Final = "owner"
GANG_OR_MORE: Final = "+"
GANG_NEVER: Final = "never"

LINKS: Final = f"{GROUP}/links"
"""On a pod, written by its author: how several cards of one container must be linked."""

CARD_SELECTOR: Final = f"{GROUP}/card-selector"
"""On a pod, written by its author: which cards to use for containers that ask by their own resources."""
CARD_PREFERENCE: Final = f"{GROUP}/card-preference"
"""On a pod, written by its author: which of the cards that fit such containers prefer."""
PRELOAD: Final = f"{GROUP}/preload"
"""On a pod, written by its author: PRELOAD_ENVIRONMENT for an image that ignores /etc/ld.so.preload."""
PRELOAD_ENVIRONMENT: Final = "environment"

RESIZE_PREFIX: Final = f"{GROUP}/resize-"
"""On a pod, written by its author at any time: prefix + container name → the new size of its running slice."""
RESIZE_PREFIXES: Final = (RESIZE_PREFIX, f"resize.{GROUP}/")
"""Both forms. The second has room for container names of up to 63 characters, the first for 56."""
RESIZED_PREFIX: Final = f"{GROUP}/resized-"
"""On a pod, written by the extender as an answer: the size, or why it cannot change. Container names of more than 55
characters have the annotation `resized.elasticgpu.io/CONTAINER`."""
RESIZED_PREFIXES: Final = (RESIZED_PREFIX, f"resized.{GROUP}/")
SHRINK_WITHIN: Final = f"{GROUP}/shrink-within"
"""On a pod or a claim, by its author: seconds to release what exceeds a smaller size."""

ANSWERS: Final = (ISOLATION, *RESIZED_PREFIXES)
"""Prefixes of annotations on a pod that tell its author something, so that no author may write them."""

SLICE_DIRECTORY: Final = "/opt/egpu"
"""The directory in a container with a GPU that has its libraries and its limits."""
PRELOAD_LIST: Final = "/etc/ld.so.preload"
SLICE_PATHS: Final = (SLICE_DIRECTORY, PRELOAD_LIST)

CLAIM_FINALIZER: Final = f"{GROUP}/claim-protection"

# --- taints -----------------------------------------------------------------------------------------------------------
AGENT_NOT_READY: Final = f"{GROUP}/agent-not-ready"
"""A taint of a node, set by its administrator: it keeps GPU pods away until the agent is ready, which removes it."""

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
"""NVIDIA's device plugin's prefix of MIG instances. The profile follows, with "." in place of "+"."""

# --- what NVIDIA's container runtime reads ----------------------------------------------------------------------------
NVIDIA_PREFIX: Final = "NVIDIA_"
NVIDIA_VISIBLE_DEVICES: Final = f"{NVIDIA_PREFIX}VISIBLE_DEVICES"
CUDA_VERSION: Final = "CUDA_VERSION"
"""An image with this variable alone counts as one of early CUDA, which gets all cards."""
NO_DEVICES: Final = "void"
"""The value with which NVIDIA's container runtime adds no devices."""

# --- dynamic resource allocation --------------------------------------------------------------------------------------
DEVICE_PLUGIN: Final = "device-plugin"
DRA: Final = "dra"
PRICED: Final = "priced"
"""Values of the label ALLOCATOR."""
OTHER_PLUGIN: Final = "other"
"""The allocator of a card that another program gives out, too."""
DRIVER: Final = f"gpu.{GROUP}"
"""The name of our driver in ResourceSlices, ResourceClaims and DeviceClasses."""
PRICED_TAINT: Final = f"{GROUP}/priced"
"""The taint of devices that only the extender gives to claims: kube-scheduler's own allocation never takes them."""
EVENT_DELAYS: Final = "GPUKernelsDelayOthers"
"""The reason of an event: long kernels of this pod delay latency work on its card."""
EVENT_DELAYED: Final = "GPUWorkDelayed"
"""The reason of an event: long kernels of another pod delay latency work of this one."""
DELETE_PROTECTION: Final = "resource.kubernetes.io/delete-protection"
"""The finalizer of a ResourceClaim with an allocation: with it, Kubernetes frees the claim when its last pod ends."""
FENCE: Final = f"{GROUP}/fence"
"""The annotation whose change gives an object another version (`egpu.apps.extender.fence`)."""

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
"""The provisioner's name, and the resource name with which pods request a slice."""
CLAIM_TECHNOLOGIES: Final[Mapping[str, str]] = {"vcuda": VCUDA, "physical": PHYSICAL}
"""The technologies of ResourceClaims, by the attribute of devices that support them. The others need what Kubernetes'
own allocation does not know: one technology a card, equal parts, or instances."""

# --- bounds: what no pod of this world asks for, so that a typing error is refused rather than pending forever -------
MAX_CARDS_PER_CONTAINER: Final = 64
MAX_CARDS_PER_NODE: Final = 64
"""Cards of one node, or of one server of the pool. The ledger has a column for each on all nodes."""
MAX_CONTAINERS: Final = 512
"""Containers of one pod that the webhook reads."""
MAX_GPU_CONTAINERS: Final = 128
"""Containers of one pod that ask for a GPU."""
MAX_MEMORY_MIB: Final = 16 * 1024 * 1024
"""16 TiB on one card."""
MAX_TFLOPS: Final = 1_000_000
MAX_GANG_SIZE: Final = 512
MAX_GANG_REQUESTS: Final = 1024
"""Containers with cards, or requests of ResourceClaims, of a gang's waiting pods. Each is placed on every node, in one
step of the extender."""
MAX_GANG_TIMEOUT_SECONDS: Final = 7 * 24 * 3600
MAX_SHRINK_SECONDS: Final = 7 * 24 * 3600


def cards_annotation(container: str) -> str:
    """Return the name of the annotation that lists the UUIDs of the cards of `container`.

    A container name may have 63 characters, and so may an annotation's name after the slash. Long names are shortened
    and get a digest.
    """
    room = 63 - len("cards-")
    if len(container) > room:
        digest = sha256(container.encode()).hexdigest()[:8]
        container = f"{container[: room - 9]}-{digest}"
    return CARDS_PREFIX + container


def resized_annotation(container: str) -> str:
    """Return the name of the annotation that answers a resize of `container`."""
    fits = len(container) <= 63 - len("resized-")
    return RESIZED_PREFIXES[not fits] + container
