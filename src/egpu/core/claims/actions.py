"""What can be done about a claim or a slice, as values: each is written with the version of what it was decided on."""

from dataclasses import dataclass
from typing import Any

from egpu.api import names
from egpu.api.objects import ClaimPhase, Condition, ElasticGPU, ElasticGPUClaim, ElasticGPUClass, GPUPhase, Slice
from egpu.api.quantities import Quantity


@dataclass(frozen=True)
class SetProtection:
    """With our finalizer the claim stays, without it it goes: its slices were dealt with before."""

    claim: ElasticGPUClaim
    protected: bool


@dataclass(frozen=True)
class PatchClaimStatus:
    """A merge patch of the controller's own part of the status: never of `allocation`, which is the extender's."""

    claim: ElasticGPUClaim
    phase: ClaimPhase | None
    bound_gpus: tuple[str, ...]
    used_by: tuple[str, ...]
    capacity: dict[str, Quantity]

    def merge_patch(self) -> dict[str, Any]:
        return {
            "status": {
                "phase": self.phase,
                "boundGPUs": list(self.bound_gpus),
                "usedBy": list(self.used_by),
                "capacity": self.capacity,
            }
        }


@dataclass(frozen=True)
class SetCondition:
    """Of the claim; since when it is so, whoever writes it says."""

    claim: ElasticGPUClaim
    condition: Condition


@dataclass(frozen=True)
class CreateSlice:
    """Its status follows in the next round: a create cannot write it."""

    gpu: ElasticGPU


@dataclass(frozen=True)
class DeleteSlice:
    """Also of a card whose node is gone."""

    gpu: ElasticGPU


@dataclass(frozen=True)
class ResizeSlice:
    """`share` is what it holds by now, of the same card."""

    gpu: ElasticGPU
    share: Slice

    def merge_patch(self) -> dict[str, Any]:
        core, memory_mib = self.share.core, self.share.memory_mib
        capacity = {names.GPU_CORE: str(core), names.GPU_MEMORY: str(memory_mib)}
        return {"spec": {"capacity": capacity, "slice": {"core": core, "memoryMiB": memory_mib}}}


@dataclass(frozen=True)
class SetSlicePhase:
    gpu: ElasticGPU
    phase: GPUPhase


@dataclass(frozen=True)
class Tell:
    """An event of the object, for whoever describes it."""

    subject: ElasticGPUClaim | ElasticGPUClass
    reason: str
    message: str
    warning: bool = True


@dataclass(frozen=True)
class LookAgain:
    """Nothing else happens that would bring the object back by then."""

    after_seconds: float


Action = (
    SetProtection
    | PatchClaimStatus
    | SetCondition
    | CreateSlice
    | DeleteSlice
    | ResizeSlice
    | SetSlicePhase
    | Tell
    | LookAgain
)
