"""The life of a claim, as Kubernetes has it for volumes: what the controller does next, given what there is.

    Pending ──(the extender writes status.allocation)──► slices are made ──► Bound ──(a slice is deleted)──► Lost
    deleted: waits while a pod uses it; then Retain → its slices are Released and stay, Delete → they go; then it goes.
    A node or a card that stays away takes the slices on it with it.

Functions return actions, in the order in which to do them; each is idempotent, and doing only the first few leaves a
state from which the next round goes on.
"""

from collections.abc import Iterable, Sequence

from egpu.api import names
from egpu.api.kubernetes import Pod
from egpu.api.objects import (
    ClaimPhase,
    Condition,
    ElasticGPU,
    ElasticGPUClaim,
    ElasticGPUClass,
    ElasticGPUSpec,
    ObjectMeta,
    ObjectReference,
    ReclaimPolicy,
    Slice,
)
from egpu.api.quantities import Quantity
from egpu.core.admission import validate_class
from egpu.core.claims.absence import Absence
from egpu.core.claims.actions import (
    Action,
    CreateSlice,
    DeleteSlice,
    LookAgain,
    PatchClaimStatus,
    ResizeSlice,
    SetCondition,
    SetProtection,
    SetSlicePhase,
    Tell,
)
from egpu.core.claims.conditions import CARDS_HEALTHY
from egpu.core.demand.pods import claims_by_container
from egpu.errors import InvalidDemand


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


def check_class(klass: ElasticGPUClass) -> list[Action]:
    """A class has no status to write into; what is wrong with it is an event."""
    if found := validate_class(klass, None):
        return [Tell(klass, "Invalid", "; ".join(map(str, found)))]
    return []


def reconcile_claim(
    claim: ElasticGPUClaim,
    klass: ElasticGPUClass | None,
    slices: Sequence[ElasticGPU],
    users: Sequence[str],
    absence: Absence | None = None,
    *,
    sick: str = "",
) -> list[Action]:
    """What to do about a claim. `slices`: the ElasticGPUs whose claimRef has its UID; `users`: from `claim_users`;
    `klass` is None when it does not exist (any more); `absence`: of what the claim holds;
    `sick`: what is wrong with its cards, as a sentence."""
    protected = names.CLAIM_FINALIZER in (claim.metadata.finalizers or [])
    if claim.metadata.deletion_timestamp:
        if not protected:
            return []
        if not users:
            return _let_go(claim, klass, slices)
        return _follow(claim, klass, slices, users)
    if not protected:
        return [SetProtection(claim, protected=True)]
    actions: list[Action] = []
    if klass is None and claim.status.allocation is None:
        actions.append(Tell(claim, "ClassNotFound", f"there is no class {claim.spec.class_name!r}"))
    if _waits_for_a_pod(claim, klass, users):
        waits = "waits for the first pod that uses it, with which its cards are chosen"
        actions.append(Tell(claim, "WaitForFirstConsumer", waits, warning=False))
    stale = _stale(claim, slices)
    actions += [DeleteSlice(gpu) for gpu in stale]
    actions += _follow(claim, klass, [gpu for gpu in slices if gpu not in stale], users)
    if claim.status.phase == "Bound" and absence is not None:
        actions += _lose(claim, slices, absence)
    return actions + _judge_cards(claim, sick)


def _waits_for_a_pod(claim: ElasticGPUClaim, klass: ElasticGPUClass | None, users: Sequence[str]) -> bool:
    unbound = claim.status.allocation is None and claim.status.phase != "Lost" and not users
    return unbound and klass is not None and klass.binding_mode == "WaitForFirstConsumer"


def _judge_cards(claim: ElasticGPUClaim, sick: str) -> list[Action]:
    """A claim whose cards never failed says nothing of it."""
    before = next((one for one in claim.status.conditions if one.type == CARDS_HEALTHY), None)
    if before is None and not sick:
        return []
    status, reason = ("False", "CardUnhealthy") if sick else ("True", "CardsHealthy")
    if before is not None and (before.status, before.message) == (status, sick):
        return []
    said = Condition(type=CARDS_HEALTHY, status=status, reason=reason, message=sick)
    return [SetCondition(claim, said), Tell(claim, reason, sick or "its cards take work again", warning=bool(sick))]


def _stale(claim: ElasticGPUClaim, slices: Sequence[ElasticGPU]) -> Sequence[ElasticGPU]:
    """Slices of an allocation that was taken back before the claim was bound: they would hold its cards."""
    if claim.status.phase in ("Bound", "Lost") or claim.status.bound_gpus:
        return ()
    wanted = _shares(claim)
    return [gpu for gpu in slices if gpu.spec.slice != wanted.get(gpu.name)]


def _lose(claim: ElasticGPUClaim, slices: Sequence[ElasticGPU], absence: Absence) -> list[Action]:
    """Without its slices the claim is Lost by the rules of the next round."""
    if absence.wait_seconds:
        return [LookAgain(absence.wait_seconds)]
    lost = Tell(claim, "Lost", f"{absence.what}; delete the claim and make it again")
    return [lost, *(DeleteSlice(gpu) for gpu in slices)]


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
    actions += _resized(claim, slices)
    actions += [
        SetSlicePhase(present[gpu.name], "Bound")
        for gpu in wanted
        if gpu.name in present and present[gpu.name].status.phase != "Bound"
    ]
    bound = tuple(gpu.name for gpu in wanted) if phase == "Bound" else tuple(status.bound_gpus)
    patch = PatchClaimStatus(claim, phase, bound, tuple(users), _capacity(claim))
    if patch != PatchClaimStatus(
        claim, status.phase, tuple(status.bound_gpus), tuple(status.used_by), dict(status.capacity)
    ):
        actions.append(patch)
    if phase == "Bound" and status.phase != "Bound":
        actions.append(Tell(claim, "Bound", f"bound to {', '.join(bound)}", warning=False))
    if phase == "Lost" and status.phase != "Lost":
        actions.append(Tell(claim, "Lost", "a slice of it is gone; delete the claim and make it again"))
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
            actions += _resized(claim, slices)
        actions += [SetSlicePhase(gpu, "Released") for gpu in slices if gpu.status.phase != "Released"]
    return [*actions, SetProtection(claim, protected=False)]


def _resized(claim: ElasticGPUClaim, slices: Sequence[ElasticGPU]) -> list[Action]:
    """Slices hold for the claim when it is gone, so each is as large as the claim's share is by now."""
    wanted = _shares(claim)
    return [
        ResizeSlice(gpu, wanted[gpu.name])
        for gpu in slices
        if gpu.name in wanted and gpu.spec.slice != wanted[gpu.name]
    ]


def reconcile_gpu(gpu: ElasticGPU, claim: ElasticGPUClaim | None, absence: Absence | None = None) -> list[Action]:
    """What to do about a card or a slice. `claim` is the one with the UID of its claimRef, None when there is none (any
    more); `absence`: of its node. A slice whose claim is there is looked after with the claim."""
    if claim is not None:
        return []
    orphan = gpu.spec.slice is not None and gpu.spec.claim_ref is not None
    if (orphan and gpu.spec.reclaim_policy == "Delete") or (absence is not None and not absence.wait_seconds):
        return [DeleteSlice(gpu)]
    actions: list[Action] = []
    if orphan and gpu.status.phase != "Released":
        actions.append(SetSlicePhase(gpu, "Released"))
    if absence is not None:
        actions.append(LookAgain(absence.wait_seconds))
    return actions


def reclaim_policy(klass: ElasticGPUClass | None, slices: Sequence[ElasticGPU]) -> ReclaimPolicy:
    """As of a volume: what was written on the slice when it was made; before that, what the class says."""
    if slices:
        return slices[0].spec.reclaim_policy
    return klass.reclaim_policy if klass else "Delete"


def slice_names(claim: ElasticGPUClaim) -> list[str]:
    """Of the slices of a claim that has cards, one a card: deterministic, so that making a slice twice makes one."""
    held = claim.status.allocation
    return [] if held is None else [f"egpuc-{claim.uid}-{ordinal}" for ordinal in range(len(held.container.cards))]


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
    return [
        ElasticGPU(
            metadata=ObjectMeta(name=name),
            spec=ElasticGPUSpec(
                node_name=held.node,
                capacity={names.GPU_CORE: str(share.core), names.GPU_MEMORY: str(share.memory_mib)},
                slice=share,
                claim_ref=reference,
                reclaim_policy=policy,
            ),
        )
        for name, share in _shares(claim).items()
    ]


def _shares(claim: ElasticGPUClaim) -> dict[str, Slice]:
    """What a claim has of its cards, by the names of its slices; nothing before it has cards."""
    held = claim.status.allocation
    if held is None:
        return {}
    container = held.container
    return {
        name: Slice(
            provisioner=container.provisioner,
            mode=container.mode,
            uuid=share.uuid,
            index=share.index,
            minor=share.minor,
            core=share.core,
            memory_mib=share.memory_mib,
            instance=share.instance,
            model=share.model,
            class_name=container.class_name,
            alike=container.alike,
        )
        for name, share in zip(slice_names(claim), container.cards, strict=True)
    }


def _capacity(claim: ElasticGPUClaim) -> dict[str, Quantity]:
    held = claim.status.allocation
    if held is None:
        return {}
    cards = held.container.cards
    core, memory = sum(share.core for share in cards), sum(share.memory_mib for share in cards)
    return {names.GPU_CORE: str(core), names.GPU_MEMORY: str(memory)}
