"""Resource names of other GPU projects that nobody here serves: a pod that asks for one is refused, not left waiting.

Read as nothing, such a name would be lost beside one of ours (NVIDIA's card with HAMi's memory would be a whole card),
or the pod would wait for a node that has it, for ever.
"""

from collections.abc import Collection
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

_SLICE: Final = f"ask for a slice with {names.GPU_CORE} (percent) and {names.GPU_MEMORY} (MiB)"
_SERVED: Final = {names.SLOT, *(one.node_only for one in VOCABULARIES if one.node_only)}
"""Names of ours that no pod's author may write: what refuses those knows better what to say."""


class Foreign(NamedTuple):
    """`name` is a whole name or, with `prefix`, the beginning of some; `whose` it is, and what to write `instead`."""

    name: str
    whose: str
    instead: str
    prefix: bool = False

    def has(self, resource: str) -> bool:
        return resource.startswith(self.name) if self.prefix else resource == self.name


def _unknown(beginning: str, *vocabularies: Vocabulary) -> Foreign:
    """A name that begins as those of `vocabularies` do, and is none of them: a typing error, or a newer version's."""
    known = ", ".join(resource for one in vocabularies for resource in one.resources())
    of = " or ".join(one.name for one in vocabularies)
    return Foreign(beginning, f"a name that the vocabulary {of} does not have", f"it has {known}", prefix=True)


FOREIGN: Final = (
    Foreign(names.MIG_PREFIX, "no profile of MIG that is known", f"write one such as {MIGS[0].cards}", prefix=True),
    Foreign("nvidia.com/gpu", "a share of a card under a name that is not known here", _SLICE, prefix=True),
    Foreign("nvidia.com/priority", "HAMi's task priority", "name a PriorityClass in spec.priorityClassName"),
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


def refused(resource: str, vocabularies: Collection[str]) -> str | None:
    """Why a pod or claim cannot ask for `resource`, and what to write instead; None where nothing is known against it.

    `vocabularies`: the optional ones that are turned on.
    """
    ours = BY_RESOURCE.get(resource)
    if ours is not None:
        if not ours.optional or ours.name in vocabularies:
            return None
        return f"is of the vocabulary {ours.name}, which is not turned on in this cluster; {_SLICE}"
    if resource in _SERVED:
        return None
    found = next((one for one in FOREIGN if one.has(resource)), None)
    return None if found is None else f"is {found.whose}: not served here; {found.instead}"
