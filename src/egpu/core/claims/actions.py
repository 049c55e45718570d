"""Actions on a claim or a slice, as values. Each is written with the version of the object that it was decided on."""

from dataclasses import dataclass
from typing import Any

from egpu.api import names
from egpu.api.objects import ClaimPhase, ElasticGPU, ElasticGPUClaim, ElasticGPUClass, GPUPhase, Slice
from egpu_base.api.objects import Condition
from egpu_base.api.quantities import Quantity


@dataclass(frozen=True)
class SetProtection:
    """Add or remove our finalizer. Without it the claim is deleted, so its slices are handled before."""

    claim: ElasticGPUClaim
    protected: bool


@dataclass(frozen=True)
class PatchClaimStatus:
    """Merge-patch the controller's part of the status: not `allocation`, which the extender writes."""

    claim: ElasticGPUClaim
    phase: ClaimPhase | None
    bound_gpus: tuple[str, ...]
    used_by: tuple[str, ...]
    capacity: dict[str, Quantity]
    qos: str

    def merge_patch(self) -> dict[str, Any]:
        return {
            "status": {
                "phase": self.phase,
                "boundGPUs": list(self.bound_gpus),
                "usedBy": list(self.used_by),
                "capacity": self.capacity,
                "qos": self.qos,
            }
        }


@dataclass(frozen=True)
class GiveUpShare:
    """Remove the allocation of a Lost claim that no pod uses. Its cards are free then."""

    claim: ElasticGPUClaim

    def merge_patch(self) -> dict[str, Any]:
        return {"status": {"allocation": None, "boundGPUs": [], "capacity": {}, "qos": ""}}


@dataclass(frozen=True)
class SetCondition:
    """Set a condition of the claim; the writer adds since when it holds."""

    claim: ElasticGPUClaim
    condition: Condition


@dataclass(frozen=True)
class CreateSlice:
    """Create a slice. The next round sets its status, which a create cannot write."""

    gpu: ElasticGPU


@dataclass(frozen=True)
class DeleteSlice:
    """Delete a slice, or a card of a node that is gone."""

    gpu: ElasticGPU


@dataclass(frozen=True)
class ResizeSlice:
    """Set the size of a slice to `share`, on the same card."""

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
    """Record an event of the object."""

    subject: ElasticGPUClaim | ElasticGPUClass
    reason: str
    message: str
    warning: bool = True


@dataclass(frozen=True)
class LookAgain:
    """Look at the object again, as no other event would bring it back by then."""

    after_seconds: float


Action = (
    SetProtection
    | PatchClaimStatus
    | GiveUpShare
    | SetCondition
    | CreateSlice
    | DeleteSlice
    | ResizeSlice
    | SetSlicePhase
    | Tell
    | LookAgain
)
