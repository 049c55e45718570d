"""Resource names of other GPU projects that nobody here serves: a pod that asks for one is refused, not left waiting.

Read as nothing, such a name would be lost beside one of ours (NVIDIA's card with HAMi's memory would be a whole card),
or the pod would wait for a node that has it, for ever.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

from egpu.api import names
from egpu.api.vocabularies import BY_RESOURCE

_SLICE: Final = f"ask for a slice with {names.GPU_CORE} (percent) and {names.GPU_MEMORY} (MiB)"


class Foreign(NamedTuple):
    """`name` is a whole name or, with `prefix`, the beginning of some; `whose` it is, and what to write `instead`."""

    name: str
    whose: str
    instead: str
    prefix: bool = False

    def has(self, resource: str) -> bool:
        return resource.startswith(self.name) if self.prefix else resource == self.name


FOREIGN: Final = (
    Foreign("nvidia.com/mig-", "a MIG profile of NVIDIA's device plugin", _SLICE, prefix=True),
    Foreign("nvidia.com/gpu.shared", "a time slice of NVIDIA's device plugin", _SLICE),
    Foreign("nvidia.com/priority", "HAMi's task priority", "name a PriorityClass in spec.priorityClassName"),
    Foreign("volcano.sh/gpu-memory", "Volcano's older GPU sharing", f"write {names.VOLCANO_MEMORY} (MiB)"),
    Foreign("volcano.sh/gpu-number", "Volcano's older GPU sharing", f"write {names.VOLCANO_NUMBER}"),
    Foreign("volcano.sh/vgpu-", "no name of Volcano's vGPU that is known", _SLICE, prefix=True),
    Foreign("4paradigm.com/vgpu", "a vGPU of 4paradigm's scheduler", _SLICE, prefix=True),
    Foreign("koordinator.sh/gpu", "a GPU share of Koordinator", _SLICE, prefix=True),
    Foreign("aliyun.com/gpu-core.percentage", "compute of Alibaba's cGPU", _SLICE),
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
    found = next((one for one in FOREIGN if one.has(resource)), None)
    return None if found is None else f"is {found.whose}, which is not served here; {found.instead}"
