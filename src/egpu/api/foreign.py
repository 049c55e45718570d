"""Names of other GPU projects: resources that are not supported, and their annotations, labels and variables.

A pod that requests an unsupported resource is refused. If such a name were ignored, a pod could get too much (NVIDIA's
card with HAMi's memory would be a whole card), or wait for ever. Annotations, labels and variables that would change
what a pod gets are read or refused by name.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Final, NamedTuple

from egpu.api import names
from egpu.api.vocabularies import (
    ALIYUN,
    BY_RESOURCE,
    DOCKER,
    ELASTIC,
    GPUSHARE,
    MIGS,
    POOL,
    QGPU,
    TENCENT,
    VOCABULARIES,
    VOLCANO,
    Vocabulary,
)
from egpu_base.api.quantities import Quantity, is_zero

PRIORITY: Final = "nvidia.com/priority"
"""HAMi's: 0 is the high priority."""
_SLICE: Final = f"ask for a slice with {names.GPU_CORE} (percent) and {names.GPU_MEMORY} (MiB)"
_SERVED: Final = {names.SLOT, *(one.node_only for one in VOCABULARIES if one.node_only)}
"""Our names that a pod's author must not write. Other checks have better messages for them."""


class Foreign(NamedTuple):
    """An unsupported name: a whole name, or a `prefix`. `whose`: what it is; `instead`: what to write in its place."""

    name: str
    whose: str
    instead: str
    prefix: bool = False

    def has(self, resource: str) -> bool:
        return resource.startswith(self.name) if self.prefix else resource == self.name


def _unknown(beginning: str, *vocabularies: Vocabulary) -> Foreign:
    """Return a name that begins like those of `vocabularies` but is none of them: mistyped, or from a newer version."""
    known = ", ".join(resource for one in vocabularies for resource in one.resources())
    of = " or ".join(one.name for one in vocabularies)
    return Foreign(beginning, f"an unknown name of the vocabulary {of}", f"use {known}", prefix=True)


FOREIGN: Final = (
    Foreign(names.MIG_PREFIX, "an unknown MIG profile", f"write one such as {MIGS[0].cards}", prefix=True),
    Foreign("nvidia.com/gpu", "an unknown name for a share of a card", _SLICE, prefix=True),
    Foreign(PRIORITY, "HAMi's task priority", "name a PriorityClass in spec.priorityClassName"),
    Foreign("volcano.sh/gpu-memory", "Volcano's older GPU sharing", f"write {names.VOLCANO_MEMORY} (MiB)"),
    Foreign("volcano.sh/gpu-number", "Volcano's older GPU sharing", f"write {names.VOLCANO_NUMBER}"),
    Foreign("volcano.sh/gpu-", "a GPU share of Huawei Cloud's Volcano", _SLICE, prefix=True),
    Foreign("4paradigm.com/vgpu", "a vGPU of 4paradigm's scheduler", _SLICE, prefix=True),
    Foreign("koordinator.sh/gpu", "a GPU share of Koordinator", _SLICE, prefix=True),
    Foreign("vke.volcengine.com/mgpu-", "an mGPU of Volcengine", _SLICE, prefix=True),
    Foreign("baidu.com/cgpu", "a cGPU of Baidu's", _SLICE, prefix=True),
    Foreign("k8s.amazonaws.com/vgpu", "a vGPU of Amazon's device plugin", _SLICE),
    Foreign("aliyun.com/gpu-core.", "compute of Alibaba's cGPU", _SLICE, prefix=True),
    Foreign(
        f"{names.QGPU_CORE}-greedy", "qGPU's compute of low priority", f"write {names.QGPU_CORE} and a PriorityClass"
    ),
    _unknown("volcano.sh/vgpu-", VOLCANO),
    _unknown("aliyun.com/gpu-", ALIYUN),
    _unknown("tencent.com/vcuda-", TENCENT),
    _unknown("docker.com/vcuda-", DOCKER),
    _unknown("tke.cloud.tencent.com/qgpu-", QGPU),
    _unknown(f"gpushare.provisioner.{names.GROUP}/", GPUSHARE),
    _unknown(f"{names.GROUP}/", ELASTIC, POOL),
)


def refused(resource: str, vocabularies: Collection[str], value: Quantity = 1) -> str | None:
    """Return why a pod or claim cannot ask for `value` of `resource`, and what to write instead; None for a name
    without objection. Zero asks for nothing, except as a priority.

    `vocabularies`: the optional ones that are turned on.
    """
    if is_zero(value) and resource != PRIORITY:
        return None
    ours = BY_RESOURCE.get(resource)
    if ours is not None:
        if not ours.optional or ours.name in vocabularies:
            return None
        return f"is of the vocabulary {ours.name}, which is not turned on in this cluster; {_SLICE}"
    if resource in _SERVED:
        return None
    found = next((one for one in FOREIGN if one.has(resource)), None)
    return None if found is None else f"is {found.whose}, which is not supported; {found.instead}"


# --- annotations, labels and environment variables --------------------------------------------------------------------

USE_TYPE: Final = "nvidia.com/use-gputype"
"""On a pod, from HAMi and Volcano: texts of which the card's model must contain one, separated by commas."""
NO_USE_TYPE: Final = "nvidia.com/nouse-gputype"
"""On a pod, from HAMi and Volcano: texts of which the card's model must contain none."""
FRACTIONS: Final = ("gpu-fraction", "gpu-memory")
"""Beginnings of the annotations with which pods of KAI and Run:ai ask for a part of a card, without any resource."""


class Place(StrEnum):
    """The part of a pod, or of a node, that has a name."""

    ANNOTATION = "annotation"
    LABEL = "label"
    VARIABLE = "environment variable"
    NODE_LABEL = "node label"
    NODE_ANNOTATION = "node annotation"


class Handling(StrEnum):
    READ = "read"
    REFUSED = "refused"
    NO_MEANING = "without meaning here"


class Other(NamedTuple):
    """A name of another project; "*" at its end: all that begin so. `note`: how it is read, what to write instead, or
    why it has no meaning here."""

    project: str
    place: Place
    name: str
    handling: Handling
    note: str
    harmless: tuple[str, ...] = ()
    """Values of a refused name that change nothing here."""

    def has(self, name: str) -> bool:
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name


def _rows(project: str, place: Place, handling: Handling, note: str, listed: str) -> tuple[Other, ...]:
    return tuple(Other(project, place, name, handling, note) for name in listed.split())


_PART: Final = f"write {names.GPU_CORE} (percent) or {names.GPU_MEMORY} (MiB) under resources.limits of the container"
_POLICY: Final = "remove it. The policy is the cluster's, or the parameter `policy` of a claim's class"
_SELECTOR: Final = f"write {names.CARD_SELECTOR}, such as `model = A100`"
_GANG: Final = f"write {names.GANG} and {names.GANG_SIZE}"
_KUBERNETES: Final = "kube-scheduler compares it with a pod's nodeSelector, where GPU feature discovery writes it"
_RECORD: Final = "its scheduler's record of a placement"
_NODES: Final = "its own record of a node"
_SET: Final = "its device plugin sets it; programs may read it, and find it unset"
_CUDA: Final = "the program gets it as it is written"
_LIMITS: Final = "write the amount under resources.limits of the container"
_NEWER: Final = "it is mistyped, or of a version that is not known here"
_HAMI, _VOLCANO, _KAI, _NVIDIA = "HAMi", "Volcano", "KAI and Run:ai", "NVIDIA"
_GPUSHARE, _MANAGER = "gpushare", "gpu-manager"
_A, _V, _NO, _REF = Place.ANNOTATION, Place.VARIABLE, Handling.NO_MEANING, Handling.REFUSED

OTHERS: Final = (
    Other("HAMi, Volcano", _A, USE_TYPE, Handling.READ, "a card selector: the model contains one of the texts"),
    Other("HAMi, Volcano", _A, NO_USE_TYPE, Handling.READ, "a card selector: the model contains none of the texts"),
    *_rows(_HAMI, _A, _REF, f"{_SELECTOR}, or keep work off a card with `egpu cordon`", "nvidia.com/use-gpuuuid "
           "nvidia.com/nouse-gpuuuid"),
    Other(_HAMI, _A, "hami.io/gpu-scheduler-policy", _REF, _POLICY, ("topology-aware",)),
    *_rows(_HAMI, _A, _REF, _POLICY, "hami.io/node-scheduler-policy hami.io/device-scoring-weights"),
    Other(_HAMI, _A, "nvidia.com/numa-bind", _REF, f"write {names.CARD_SELECTOR}, such as `numa = 0`", ("false",)),
    Other(_HAMI, _A, "nvidia.com/vgpu-mode", _REF, f"ask for {MIGS[0].cards} or {names.MPS}", ("hami-core",)),
    Other(_HAMI, _A, "hami.io/gpu-topology-aware", _REF, f"write {names.LINKS}", ("true",)),
    Other(_HAMI, Place.LABEL, "hami.io/webhook", _REF, "remove it. The webhook sees each pod that asks for a GPU"),
    *_rows(_HAMI, _A, _NO, _RECORD, "hami.io/vgpu-devices-to-allocate hami.io/vgpu-devices-allocated hami.io/vgpu-node "
           "hami.io/vgpu-time hami.io/bind-phase hami.io/bind-time"),
    *_rows(_HAMI, Place.NODE_ANNOTATION, _NO, _NODES, "hami.io/node-handshake hami.io/node-nvidia-register "
           "hami.io/node-nvidia-score hami.io/mutex.lock"),
    Other(_HAMI, Place.NODE_LABEL, "gpu", _NO, f"it starts HAMi's device plugin; label nodes {names.GROUP}/node"),
    Other(_HAMI, _V, "GPU_CORE_UTILIZATION_POLICY", _REF, f"leave out {names.HAMI_CORES}, or use a class with "
          "`computeMode: share`", ("default", "force", "DEFAULT", "FORCE")),
    Other(_HAMI, _V, "CUDA_DISABLE_CONTROL", _REF, "remove it. Ask for a whole card to run without limits", ("false",)),
    Other(_HAMI, _V, "CUDA_OVERSUBSCRIBE", _REF, "use a class with `memoryOversubscription`", ("false",)),
    Other(_HAMI, _V, "CUDA_TASK_PRIORITY", _REF, "name a PriorityClass in spec.priorityClassName"),
    *_rows(_HAMI, _V, _REF, _LIMITS, "CUDA_DEVICE_MEMORY_LIMIT* CUDA_DEVICE_SM_LIMIT*"),
    *_rows(_HAMI, _V, _NO, "its library reads it, which is not in the container", "ACTIVE_OOM_KILLER LIBCUDA_LOG_LEVEL "
           "CUDA_DEVICE_MEMORY_SHARED_CACHE"),
    Other(_VOLCANO, _A, "volcano.sh/vgpu-mode", _REF, f"ask for {MIGS[0].cards} or {names.MPS}", ("hami-core",)),
    *_rows(_VOLCANO, _A, Handling.READ, "a gang, with the size of the PodGroup", "scheduling.k8s.io/group-name "
           "scheduling.volcano.sh/group-name"),
    Other(_VOLCANO, _A, "scheduling.volcano.sh/group-min-member", _REF, _GANG),
    *_rows(_VOLCANO, _A, _NO, "queues are Volcano's; a ResourceQuota limits a namespace", "volcano.sh/queue-name "
           "scheduling.volcano.sh/queue-name"),
    *_rows(_VOLCANO, _A, _NO, _RECORD, "volcano.sh/vgpu-time volcano.sh/vgpu-ids-new volcano.sh/devices-to-allocate "
           "volcano.sh/vgpu-node volcano.sh/bind-time volcano.sh/bind-phase volcano.sh/predicate-time"),
    Other(_VOLCANO, _A, "volcano.sh/gpu-index", _REF, _SELECTOR),
    *_rows(_VOLCANO, Place.NODE_ANNOTATION, _NO, _NODES, "volcano.sh/node-vgpu-handshake volcano.sh/node-vgpu-register "
           "volcano.sh/mutex.lock"),
    *_rows(_GPUSHARE, _A, _NO, _RECORD, "ALIYUN_COM_GPU_MEM_IDX ALIYUN_COM_GPU_MEM_POD ALIYUN_COM_GPU_MEM_DEV "
           "ALIYUN_COM_GPU_MEM_ASSIGNED ALIYUN_COM_GPU_MEM_ASSUME_TIME ALIYUN_COM_GPU_MEM_ASSIGN_TIME ALIYUN_GPU_ID"),
    *_rows(_GPUSHARE, _V, _NO, _SET, "ALIYUN_COM_GPU_MEM_CONTAINER ALIYUN_COM_GPU_MEM_DEV ALIYUN_COM_GPU_MEM_IDX "
           "ALIYUN_COM_GPU_MEM_POD"),
    *_rows(_GPUSHARE, Place.NODE_LABEL, _NO, f"it starts gpushare's device plugin; label nodes {names.GROUP}/node",
           "gpushare ack.node.gpu.schedule"),
    Other(_GPUSHARE, Place.NODE_LABEL, "cgpu.disable.isolation", _NO, "a class's provisioner decides about isolation"),
    Other(_MANAGER, _A, names.VCUDA_CORE_LIMIT, Handling.READ, "percent up to which idle compute may be used; 0: none"),
    *_rows(_MANAGER, _A, _NO, _RECORD, "tencent.com/predicate-time tencent.com/predicate-node tencent.com/gpu-assigned "
           "tencent.com/predicate-gpu-idx-* tencent.com/vcuda-device"),
    Other(_MANAGER, Place.NODE_LABEL, "nvidia-device-enable", _NO, f"label nodes {names.GROUP}/node"),
    *_rows(_NVIDIA, Place.NODE_LABEL, Handling.READ, _KUBERNETES, "nvidia.com/gpu.product nvidia.com/gpu.memory "
           "nvidia.com/gpu.count nvidia.com/gpu.family nvidia.com/gpu.compute.* nvidia.com/gpu.present "
           "nvidia.com/gpu.replicas nvidia.com/gpu.machine nvidia.com/cuda.* nvidia.com/mig.capable "
           "nvidia.com/mig.strategy nvidia.com/gpu.sharing-strategy"),
    *_rows(_NVIDIA, Place.NODE_LABEL, _NO, "it configures NVIDIA's own device plugin and MIG manager",
           "nvidia.com/mig.config nvidia.com/device-plugin.config nvidia.com/gpu.deploy.*"),
    Other(_NVIDIA, _V, names.NVIDIA_VISIBLE_DEVICES, Handling.READ, "the webhook writes the cards of the pod"),
    *_rows(_NVIDIA, _V, _NO, "NVIDIA's container runtime reads it, as ever", "NVIDIA_DRIVER_CAPABILITIES "
           "NVIDIA_REQUIRE_* NVIDIA_DISABLE_REQUIRE NVIDIA_MIG_CONFIG_DEVICES NVIDIA_MIG_MONITOR_DEVICES "
           "NVIDIA_IMEX_CHANNELS"),
    *_rows(_NVIDIA, _V, _NO, _CUDA, "CUDA_VISIBLE_DEVICES CUDA_MPS_ACTIVE_THREAD_PERCENTAGE "
           "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT CUDA_MPS_PIPE_DIRECTORY"),
    *_rows(_KAI, _A, _REF, _PART, "gpu-fraction gpu-memory gpu-fraction-num-devices gpu-fraction-container-name "
           "gpu-fraction-limit gpu-memory-limit gpu-fraction.limit gpu-memory.limit"),
    *_rows(_KAI, _A, _REF, f"write {names.GPU_CORE} (percent) under resources.limits of the container",
           "gpu-sm-percentage gpu-sm-cores"),
    Other(_KAI, _A, "mps", _REF, f"ask for {names.MPS}", ("false",)),
    *_rows(_KAI, _A, _REF, f"write {names.LINKS}, or a nodeSelector", "kai.scheduler/topology "
           "kai.scheduler/topology-required-placement kai.scheduler/topology-preferred-placement"),
    *_rows(_KAI, _A, _NO, _RECORD, "received-resource-type pod-group-name runai/shared-gpu-configmap "
           "kai.scheduler/top-owner-metadata kai.scheduler/skip-podgrouper kai.scheduler/stale-podgroup-timestamp "
           "kai.scheduler/last-start-timestamp"),
    *_rows(_KAI, Place.LABEL, _NO, "queues are KAI's; a ResourceQuota limits a namespace", "kai.scheduler/queue "
           "runai/queue kai.scheduler/node-pool kai.scheduler/subgroup-name runai-gpu-group runai-gpu-group/*"),
    *_rows(_KAI, _V, _REF, f"use a class with `memoryOversubscription`, and {names.GPU_MEMORY}",
           "RUNAI_GPU_MEMORY_LIMIT"),
    *_rows(_KAI, _V, _NO, _SET, "GPU_PORTION RUNAI_NUM_OF_GPUS RUNAI-VISIBLE-DEVICES"),
    *_rows("HAMi, Volcano", _A, _REF, f"{_NEWER}; {_SELECTOR}", "nvidia.com/use-gpu* nvidia.com/nouse-gpu*"),
    *_rows(_HAMI, _A, _REF, f"{_NEWER}; remove it", "hami.io/gpu-* hami.io/vgpu-*"),
    *_rows(_VOLCANO, _A, _REF, f"{_NEWER}; remove it", "volcano.sh/vgpu-* volcano.sh/gpu-*"),
    *_rows(_KAI, _A, _REF, f"{_NEWER}; {_PART}", "gpu-fraction* gpu-memory* gpu-sm-*"),
)  # fmt: skip
"""Each name that could reach a pod or node of ours. Of rows that match a name the first counts.
docs/reference/foreign-names.md is made from this list."""


def objection(place: Place, name: str, value: str) -> str | None:
    """Return why a pod that asks for a GPU cannot have this annotation, label or variable, and what to write instead.

    None for a name without objection.
    """
    if place is Place.ANNOTATION and name in BY_RESOURCE:
        return "is the name of a resource, not of an annotation; write it under resources.limits of a container"
    found = next((one for one in OTHERS if one.place is place and one.has(name)), None)
    if found is None or found.handling is not Handling.REFUSED or value in found.harmless:
        return None
    return f"is of {found.project}, and is not supported; {found.note}"


NO_STATIC_PODS: Final = (
    "a static pod can have no GPU, because no scheduler chooses its cards: its containers run without one, or not at "
    "all; remove the GPU from its manifest, or use a DaemonSet"
)
