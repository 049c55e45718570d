"""The life of a claim, as Kubernetes has it for volumes: what the controller does next, given what there is.

    Pending ──(the extender writes status.allocation)──► slices are made ──► Bound ──(a slice is deleted)──► Lost
    deleted: waits while a pod uses it; then Retain → its slices are Released and stay, Delete → they go; then it goes.

Functions return actions, in the order in which to do them; each is idempotent, and doing only the first few leaves a
state from which the next round goes on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from egpu.api import names
from egpu.api.kubernetes import Pod
from egpu.api.objects import (
    ClaimPhase,
    ElasticGPU,
    ElasticGPUClaim,
    ElasticGPUClass,
    ElasticGPUSpec,
    ElasticGPUStatus,
    GPUPhase,
    ObjectMeta,
    ObjectReference,
    ReclaimPolicy,
    Slice,
)
from egpu.core.demand.pods import claims_by_container
from egpu.errors import InvalidDemand


@dataclass(frozen=True)
class AddFinalizer:
    claim: ElasticGPUClaim


@dataclass(frozen=True)
class RemoveFinalizer:
    """Let the claim go; its slices were dealt with before."""

    claim: ElasticGPUClaim


@dataclass(frozen=True)
class PatchClaimStatus:
    """A merge patch of the controller's own part of the status: never of `allocation`, which is the extender's."""

    claim: ElasticGPUClaim
    phase: ClaimPhase
    bound_gpus: tuple[str, ...]
    used_by: tuple[str, ...]
    capacity: dict[str, int]

    def merge_patch(self) -> dict[str, Any]:
        return {
            "status": {
                "phase": self.phase,
                "boundGPUs": list(self.bound_gpus),
                "usedBy": list(self.used_by),
                "capacity": {resource: str(value) for resource, value in self.capacity.items()},
            }
        }


@dataclass(frozen=True)
class CreateSlice:
    """Its status follows in the next round: a create cannot write it."""

    gpu: ElasticGPU


@dataclass(frozen=True)
class DeleteSlice:
    gpu: ElasticGPU


@dataclass(frozen=True)
class SetSlicePhase:
    gpu: ElasticGPU
    phase: GPUPhase

    def status(self) -> ElasticGPUStatus:
        return ElasticGPUStatus(phase=self.phase)


Action = AddFinalizer | RemoveFinalizer | PatchClaimStatus | CreateSlice | DeleteSlice | SetSlicePhase


def needs_binding(claim: ElasticGPUClaim, klass: ElasticGPUClass) -> bool:
    """Whether the extender should look for cards for this claim now, without waiting for a pod."""
    if claim.metadata.deletion_timestamp or claim.status.allocation is not None or claim.status.phase == "Lost":
        return False
    return klass.binding_mode == "Immediate"


def claim_users(claim: ElasticGPUClaim, pods: Iterable[Pod]) -> list[str]:
    """Who uses the claim now, as "pod/container": pods of its namespace that are placed and not finished."""
    users: list[str] = []
    for pod in pods:
        if pod.namespace != claim.namespace or not pod.spec.node_name or pod.finished:
            continue
        try:
            named = claims_by_container(pod)
        except InvalidDemand:
            continue  # never placed by us: admission refuses it
        users += [f"{pod.name}/{container}" for container, name in named.items() if name == claim.name]
    return sorted(users)


def reconcile_claim(
    claim: ElasticGPUClaim, klass: ElasticGPUClass | None, slices: Sequence[ElasticGPU], users: Sequence[str]
) -> list[Action]:
    """What to do about a claim. `slices`: the ElasticGPUs whose claimRef has its UID; `users`: from `claim_users`;
    `klass` is None when it does not exist (any more)."""
    protected = names.CLAIM_FINALIZER in (claim.metadata.finalizers or [])
    if claim.metadata.deletion_timestamp:
        if not protected:
            return []
        if not users:
            return _let_go(claim, klass, slices)
    elif not protected:
        return [AddFinalizer(claim)]
    return _follow(claim, klass, slices, users)


def _follow(
    claim: ElasticGPUClaim, klass: ElasticGPUClass | None, slices: Sequence[ElasticGPU], users: Sequence[str]
) -> list[Action]:
    actions: list[Action] = []
    wanted = claim_slices(claim, reclaim_policy(klass, slices))
    present = {gpu.name: gpu for gpu in slices}
    missing = [gpu for gpu in wanted if gpu.name not in present]
    status = claim.status
    was_bound = bool(status.bound_gpus) or status.phase in ("Bound", "Lost")
    phase: ClaimPhase
    if was_bound and (missing or not wanted):
        phase = "Lost"
    elif wanted:
        phase = "Bound"
        actions += [CreateSlice(gpu) for gpu in missing]
    else:
        phase = "Pending"
    actions += [
        SetSlicePhase(present[gpu.name], "Bound")
        for gpu in wanted
        if gpu.name in present and present[gpu.name].status.phase != "Bound"
    ]
    bound = tuple(gpu.name for gpu in wanted) if phase == "Bound" else tuple(status.bound_gpus)
    patch = PatchClaimStatus(claim, phase, bound, tuple(users), _capacity(claim))
    shown = {resource: str(value) for resource, value in patch.capacity.items()}
    now = (status.phase, tuple(status.bound_gpus), tuple(status.used_by), dict(status.capacity))
    if now != (phase, bound, tuple(users), shown):
        actions.append(patch)
    return actions


def _let_go(claim: ElasticGPUClaim, klass: ElasticGPUClass | None, slices: Sequence[ElasticGPU]) -> list[Action]:
    actions: list[Action] = []
    policy = reclaim_policy(klass, slices)
    if policy == "Delete":
        actions += [DeleteSlice(gpu) for gpu in slices]
    else:
        present = {gpu.name for gpu in slices}
        if claim.status.phase != "Lost":
            missing = [gpu for gpu in claim_slices(claim, policy) if gpu.name not in present]
            actions += [CreateSlice(gpu) for gpu in missing]
        actions += [SetSlicePhase(gpu, "Released") for gpu in slices if gpu.status.phase != "Released"]
    return [*actions, RemoveFinalizer(claim)]


def reconcile_slice(gpu: ElasticGPU, claim: ElasticGPUClaim | None) -> list[Action]:
    """What to do about a slice. `claim` is the one with the UID of its claimRef, None when there is none (any more)."""
    if claim is not None or gpu.spec.slice is None:
        return []
    if gpu.spec.reclaim_policy == "Delete":
        return [DeleteSlice(gpu)]
    return [] if gpu.status.phase == "Released" else [SetSlicePhase(gpu, "Released")]


def reclaim_policy(klass: ElasticGPUClass | None, slices: Sequence[ElasticGPU]) -> ReclaimPolicy:
    """As of a volume: what was written on the slice when it was made; before that, what the class says."""
    if slices:
        return slices[0].spec.reclaim_policy
    return klass.reclaim_policy if klass else "Delete"


def slice_name(claim_uid: str, ordinal: int) -> str:
    """Deterministic, so that making a slice twice makes one."""
    return f"egpuc-{claim_uid}-{ordinal}"


def claim_slices(claim: ElasticGPUClaim, policy: ReclaimPolicy) -> list[ElasticGPU]:
    """The ElasticGPUs of a claim that has cards, one a card; none before."""
    held = claim.status.allocation
    if held is None:
        return []
    reference = ObjectReference(
        api_version=names.API_VERSION,
        kind="ElasticGPUClaim",
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
    )
    container = held.container
    return [
        ElasticGPU(
            metadata=ObjectMeta(name=slice_name(claim.uid, ordinal)),
            spec=ElasticGPUSpec(
                node_name=held.node,
                capacity={names.GPU_CORE: str(share.core), names.GPU_MEMORY: str(share.memory_mib)},
                slice=Slice(
                    provisioner=container.provisioner,
                    mode=container.mode,
                    uuid=share.uuid,
                    index=share.index,
                    minor=share.minor,
                    core=share.core,
                    memory_mib=share.memory_mib,
                    model=share.model,
                    class_name=container.class_name,
                ),
                claim_ref=reference,
                reclaim_policy=policy,
            ),
        )
        for ordinal, share in enumerate(container.cards)
    ]


def _capacity(claim: ElasticGPUClaim) -> dict[str, int]:
    held = claim.status.allocation
    if held is None:
        return {}
    cards = held.container.cards
    return {
        names.GPU_CORE: sum(share.core for share in cards),
        names.GPU_MEMORY: sum(share.memory_mib for share in cards),
    }
