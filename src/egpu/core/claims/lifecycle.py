"""The life of a claim, as of Kubernetes' volumes: what the controller does next, given the objects.

    Pending ──(the extender writes status.allocation)──► slices are created ──► Bound ──(a slice is deleted)──► Lost
    deleted: waits while a pod uses it; then Retain → its slices are Released and stay, Delete → they go; then it goes.
    A node or a card that stays away takes the slices on it with it; when it is back, the claim is Bound again.
    A claim that lost a slice in another way stays Lost, and gives up its share when no pod uses it.

Functions return actions in order. Each action is idempotent. After any first part of them, the next round continues.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from egpu.api import names
from egpu.api.objects import (
    CARDS_PRESENT,
    ClaimPhase,
    ElasticGPU,
    ElasticGPUClaim,
    ElasticGPUClass,
    ElasticGPUSpec,
    ReclaimPolicy,
    Slice,
)
from egpu.core.admission import validate_class
from egpu.core.claims.absence import Absence
from egpu.core.claims.actions import (
    Action,
    CreateSlice,
    DeleteSlice,
    GiveUpShare,
    LookAgain,
    PatchClaimStatus,
    ResizeSlice,
    SetCondition,
    SetProtection,
    SetSlicePhase,
    Tell,
)
from egpu.core.claims.conditions import CARDS_AWAY, CARDS_HEALTHY, SLICE_DELETED, away
from egpu.core.demand.pods import claims_by_container
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import Condition, ObjectMeta, ObjectReference
from egpu_base.api.quantities import Quantity
from egpu_base.errors import InvalidDemand

_DELETED: Final = "one of its slices is gone; delete the claim and create it again"


def needs_binding(claim: ElasticGPUClaim, klass: ElasticGPUClass) -> bool:
    """Return whether the extender should choose cards for this claim now, without waiting for a pod."""
    if claim.metadata.deletion_timestamp or claim.status.allocation is not None or claim.status.phase == "Lost":
        return False
    return klass.binding_mode == "Immediate"


def claim_users(claim: ElasticGPUClaim, pods: Iterable[Pod]) -> list[str]:
    """Return the current users of the claim, as "pod/container": placed, unfinished pods of its namespace."""
    users: list[str] = []
    for pod in pods:
        if pod.namespace != claim.namespace or not pod.spec.node_name or pod.finished:
            continue
        try:
            named = claims_by_container(pod)
        except InvalidDemand:
            continue  # admission refuses it, so it is never placed
        users += [f"{pod.name}/{container}" for container, name in named.items() if name == claim.name]
    return sorted(users)


def check_class(klass: ElasticGPUClass) -> list[Action]:
    """Report the problems of a class as an event, as a class has no status."""
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
    idle: Absence | None = None,
    sick: str = "",
) -> list[Action]:
    """Return what to do about a claim. `slices`: the ElasticGPUs whose claimRef has its UID; `users`: from
    `claim_users`; `klass`: None if it does not exist (any more); `absence`: of what the claim holds; `idle`: of
    users of a Lost claim; `sick`: the problems of its cards."""
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
        actions.append(Tell(claim, "ClassNotFound", f"class {claim.spec.class_name!r} does not exist"))
    if _waits_for_a_pod(claim, klass, users):
        waits = "waits for the first pod that uses it; its cards are chosen for that pod"
        actions.append(Tell(claim, "WaitForFirstConsumer", waits, warning=False))
    stale = _stale(claim, slices)
    actions += [DeleteSlice(gpu) for gpu in stale]
    back = claim.status.phase == "Lost" and absence is None and away(claim)
    actions += _follow(claim, klass, [gpu for gpu in slices if gpu not in stale], users, back=back)
    if claim.status.phase == "Bound" and absence is not None:
        actions += _lose(claim, slices, absence)
    elif claim.status.phase is not None:
        actions += _judge_presence(claim, slices, idle)
    return actions + _judge_cards(claim, sick)


def _waits_for_a_pod(claim: ElasticGPUClaim, klass: ElasticGPUClass | None, users: Sequence[str]) -> bool:
    unbound = claim.status.allocation is None and claim.status.phase != "Lost" and not users
    return unbound and klass is not None and klass.binding_mode == "WaitForFirstConsumer"


def _judge_cards(claim: ElasticGPUClaim, sick: str) -> list[Action]:
    """Return actions for the health of the cards. A claim whose cards never failed has no such condition."""
    before = claim.status.condition(CARDS_HEALTHY)
    if before is None and not sick:
        return []
    status, reason = ("False", "CardUnhealthy") if sick else ("True", "CardsHealthy")
    if before is not None and (before.status, before.message) == (status, sick):
        return []
    said = Condition(type=CARDS_HEALTHY, status=status, reason=reason, message=sick)
    return [SetCondition(claim, said), Tell(claim, reason, sick or "its cards are healthy again", warning=bool(sick))]


def _stale(claim: ElasticGPUClaim, slices: Sequence[ElasticGPU]) -> Sequence[ElasticGPU]:
    """Return the slices of an allocation that was taken back before the claim was bound: they would hold its cards."""
    if claim.status.phase in ("Bound", "Lost") or claim.status.bound_gpus:
        return ()
    wanted = _shares(claim)
    return [gpu for gpu in slices if gpu.spec.slice != wanted.get(gpu.name)]


def _lose(claim: ElasticGPUClaim, slices: Sequence[ElasticGPU], absence: Absence) -> list[Action]:
    """Delete the slices of missing cards. The next round then marks the claim as Lost."""
    if absence.wait_seconds:
        return [LookAgain(absence.wait_seconds)]
    why = f"{absence.what}; the claim is bound again when it is back"
    gone = Condition(type=CARDS_PRESENT, status="False", reason=CARDS_AWAY, message=why)
    return [SetCondition(claim, gone), Tell(claim, "Lost", why), *(DeleteSlice(gpu) for gpu in slices)]


def _judge_presence(claim: ElasticGPUClaim, slices: Sequence[ElasticGPU], idle: Absence | None) -> list[Action]:
    """Return actions for the presence of the cards. A claim that was never Lost has no such condition."""
    before = claim.status.condition(CARDS_PRESENT)
    whole = {gpu.name for gpu in slices} >= set(claim.status.bound_gpus)
    if claim.status.phase == "Bound" and whole and before is not None and before.status == "False":
        return [SetCondition(claim, Condition(type=CARDS_PRESENT, status="True", reason="CardsBack"))]
    if claim.status.phase != "Lost" or away(claim):
        return []
    if before is None or before.status == "True":
        gone = Condition(type=CARDS_PRESENT, status="False", reason=SLICE_DELETED, message=_DELETED)
        return [SetCondition(claim, gone)]
    if claim.status.allocation is None or idle is None:
        return []
    if idle.wait_seconds:
        return [LookAgain(idle.wait_seconds)]
    return [*(DeleteSlice(gpu) for gpu in slices), GiveUpShare(claim)]


def _follow(
    claim: ElasticGPUClaim,
    klass: ElasticGPUClass | None,
    slices: Sequence[ElasticGPU],
    users: Sequence[str],
    *,
    back: bool = False,
) -> list[Action]:
    """Return what makes slices and status follow the allocation. `back`: the cards of a Lost claim are there again."""
    actions: list[Action] = []
    wanted = claim_slices(claim, reclaim_policy(klass, slices))
    present = {gpu.name: gpu for gpu in slices}
    missing = [gpu for gpu in wanted if gpu.name not in present]
    status = claim.status
    was_bound = not back and (bool(status.bound_gpus) or status.phase in ("Bound", "Lost"))
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
    patch = PatchClaimStatus(claim, phase, bound, tuple(users), _capacity(claim), _qos(claim))
    if patch != PatchClaimStatus(
        claim, status.phase, tuple(status.bound_gpus), tuple(status.used_by), dict(status.capacity), status.qos
    ):
        actions.append(patch)
    if phase == "Bound" and status.phase != "Bound":
        actions.append(Tell(claim, "Bound", f"bound to {', '.join(bound)}", warning=False))
    if phase == "Lost" and status.phase != "Lost":
        actions += [] if away(claim) else [Tell(claim, "Lost", _DELETED)]
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
    """Resize slices to the claim's share: they hold the cards when the claim is gone."""
    wanted = _shares(claim)
    return [
        ResizeSlice(gpu, wanted[gpu.name])
        for gpu in slices
        if gpu.name in wanted and gpu.spec.slice != wanted[gpu.name]
    ]


def reconcile_gpu(gpu: ElasticGPU, claim: ElasticGPUClaim | None, absence: Absence | None = None) -> list[Action]:
    """Return what to do about a card or a slice. `claim`: the one with the UID of its claimRef, None if it does not
    exist (any more); `absence`: of its node. A slice is handled with its claim while that exists."""
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
    """Return the policy written on the slice when it was created; before that, the policy of the class."""
    if slices:
        return slices[0].spec.reclaim_policy
    return klass.reclaim_policy if klass else "Delete"


def slice_names(claim: ElasticGPUClaim) -> list[str]:
    """Return the names of a claim's slices, one per card. They are deterministic, so no slice is created twice."""
    held = claim.status.allocation
    return [] if held is None else [f"egpuc-{claim.uid}-{ordinal}" for ordinal in range(len(held.container.cards))]


def claim_slices(claim: ElasticGPUClaim, policy: ReclaimPolicy) -> list[ElasticGPU]:
    """Return the ElasticGPUs of a claim that has cards, one per card; none before."""
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
    """Return the claim's shares of cards, by the names of its slices; empty before it has cards."""
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
            resident_mib=share.resident_mib,
            instance=share.instance,
            model=share.model,
            class_name=container.class_name,
            alike=container.alike,
        )
        for name, share in zip(slice_names(claim), container.cards, strict=True)
    }


def _qos(claim: ElasticGPUClaim) -> str:
    allocation = claim.status.allocation
    return allocation.container.qos if allocation is not None else ""


def _capacity(claim: ElasticGPUClaim) -> dict[str, Quantity]:
    held = claim.status.allocation
    if held is None:
        return {}
    cards = held.container.cards
    core, memory = sum(share.core for share in cards), sum(share.memory_mib for share in cards)
    return {names.GPU_CORE: str(core), names.GPU_MEMORY: str(memory)}
