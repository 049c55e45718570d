"""What is told of a claim and of its class, to whom, and what is done with it."""

from collections.abc import Sequence

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.api.objects import ClaimAllocation, ClaimPhase, ElasticGPU, ElasticGPUClaim, ElasticGPUClaimStatus
from egpu.api.objects import ElasticGPUStatus as Status
from egpu.core.claims.absence import MISSING_SECONDS, Absence, Absences
from egpu.core.claims.actions import CreateSlice, DeleteSlice, PatchClaimStatus, SetCondition, SetSlicePhase, Tell
from egpu.core.claims.lifecycle import check_class, claim_slices, reconcile_claim, reconcile_gpu
from egpu_base.api.objects import Condition
from support.objects import claim, gpu_class

SHARE = CardShare(uuid="GPU-0", index=0, minor=0, core=30, memory_mib=1000)


def held(phase: ClaimPhase, bound_gpus: Sequence[str] = ()) -> ElasticGPUClaim:
    container = ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=(SHARE,))
    allocation = ClaimAllocation(node="n0", container=container)
    status = ElasticGPUClaimStatus(phase=phase, allocation=allocation, bound_gpus=list(bound_gpus))
    return replace(claim("c"), status=status)


def slices_of(what: ElasticGPUClaim) -> list[ElasticGPU]:
    return [replace(piece, status=Status(phase="Bound")) for piece in claim_slices(what, "Delete")]


def tells(actions: Sequence[object]) -> list[Tell]:
    return [action for action in actions if isinstance(action, Tell)]


def test_a_class_is_told_what_is_wrong_with_it() -> None:
    unknown = gpu_class("x", "no.such")
    (told,) = tells(check_class(unknown))
    assert (told.subject, told.reason, told.warning) == (unknown, "Invalid", True)
    assert "no.such" in told.message


def test_being_bound_is_good_news() -> None:
    what = held("Pending")
    name = claim_slices(what, "Delete")[0].name
    assert tells(reconcile_claim(what, gpu_class(), [], [])) == [Tell(what, "Bound", f"bound to {name}", warning=False)]


def test_a_lost_slice_is_told_once() -> None:
    what = held("Bound")
    (told,) = tells(reconcile_claim(what, gpu_class(), [], []))
    assert told == Tell(what, "Lost", "one of its slices is gone; delete the claim and create it again")
    assert tells(reconcile_claim(held("Lost"), gpu_class(), [], [])) == []


def test_what_is_gone_for_good_is_named_after_everything_else_was_done() -> None:
    what = held("Bound", bound_gpus=[piece.name for piece in claim_slices(held("Bound"), "Delete")])
    pieces = slices_of(what)
    actions = reconcile_claim(what, gpu_class(), pieces, ["p/app"], Absence("node n0 is gone", 0.0))
    assert isinstance(actions[0], PatchClaimStatus)
    why = "node n0 is gone; the claim is bound again when it is back"
    assert actions[1:] == [
        SetCondition(what, Condition(type="CardsPresent", status="False", reason="CardsAway", message=why)),
        Tell(what, "Lost", why),
        DeleteSlice(pieces[0]),
    ]


def test_slices_of_a_claim_that_was_bound_are_never_stale() -> None:
    for what in (held("Bound"), held("Lost"), held("Pending", bound_gpus=["x"])):
        (piece,) = slices_of(what)
        assert piece.spec.slice is not None
        other = replace(piece, spec=replace(piece.spec, slice=replace(piece.spec.slice, core=99)))
        assert DeleteSlice(other) not in reconcile_claim(what, gpu_class(), [other], [])
    what = held("Pending")
    assert reconcile_claim(what, gpu_class(), [other], [])[0] == DeleteSlice(other)


def test_a_claim_that_is_leaving_keeps_the_policy_of_its_class_while_it_is_used() -> None:
    what = held("Pending")
    leaving = replace(what, metadata=replace(what.metadata, deletion_timestamp="2030-01-01T00:00:00Z"))
    actions = reconcile_claim(leaving, gpu_class(retain=True), [], ["p/app"])
    assert actions[0] == CreateSlice(claim_slices(leaving, "Retain")[0])


def test_a_slice_that_no_claim_made_is_left_alone() -> None:
    (piece,) = slices_of(held("Bound"))
    foreign = replace(piece, spec=replace(piece.spec, claim_ref=None))
    assert reconcile_gpu(foreign, None) == []
    assert reconcile_gpu(replace(piece, spec=replace(piece.spec, reclaim_policy="Retain")), None) == [
        SetSlicePhase(replace(piece, spec=replace(piece.spec, reclaim_policy="Retain")), "Released")
    ]


def test_the_last_moment_of_waiting_is_waited_for() -> None:
    absences = Absences()
    absences.look("uid", "gone", now=0.0)
    assert absences.look("uid", "gone", now=MISSING_SECONDS - 0.5) == Absence("gone", 0.5)
    assert absences.look("uid", "gone", now=MISSING_SECONDS) == Absence("gone", 0.0)
