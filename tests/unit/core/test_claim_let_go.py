"""How a claim gets its slices and how it lets go of them, written out whole."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.api.objects import (
    ClaimAllocation,
    ClaimPhase,
    ElasticGPU,
    ElasticGPUClaim,
    ElasticGPUClaimStatus,
    ElasticGPUSpec,
    ElasticGPUStatus,
    GPUPhase,
    Slice,
)
from egpu.core.claims.actions import (
    CreateSlice,
    DeleteSlice,
    PatchClaimStatus,
    SetProtection,
    SetSlicePhase,
)
from egpu.core.claims.lifecycle import (
    claim_slices,
    claim_users,
    needs_binding,
    reclaim_policy,
    reconcile_claim,
    reconcile_gpu,
    slice_names,
)
from egpu_base.api.objects import ObjectMeta, ObjectReference
from support.objects import claim, claim_pod, cluster, gpu_class, place, placed

SHARES = tuple(
    CardShare(uuid=f"GPU-{n}", index=n, minor=n + 4, core=30 + n, memory_mib=1000 + n, model="T4") for n in range(2)
)
HELD = ContainerAllocation(provisioner=names.VCUDA, mode="shared", class_name="shared", cards=SHARES)


def held(phase: ClaimPhase = "Bound", *, deleted: bool = False) -> ElasticGPUClaim:
    """A claim of two cards."""
    what = claim("c")
    status = ElasticGPUClaimStatus(phase=phase, allocation=ClaimAllocation(node="n0", container=HELD))
    at = "2030-01-01T00:00:00Z" if deleted else None
    return replace(what, status=status, metadata=replace(what.metadata, deletion_timestamp=at))


def shown(pieces: Sequence[ElasticGPU], phase: GPUPhase) -> list[ElasticGPU]:
    return [replace(piece, status=ElasticGPUStatus(phase=phase)) for piece in pieces]


def unprotected(gone: ElasticGPUClaim) -> SetProtection:
    return SetProtection(gone, protected=False)


def test_a_slice_says_all_that_it_is() -> None:
    first, second = claim_slices(held(), "Retain")
    reference = ObjectReference(
        api_version="elasticgpu.io/v1alpha1", kind="ElasticGPUClaim", namespace="default", name="c", uid="uid-claim-c"
    )
    piece = Slice(
        provisioner=names.VCUDA, mode="shared", uuid="GPU-0", index=0, minor=4, core=30, memory_mib=1000, model="T4",
        class_name="shared",
    )  # fmt: skip
    assert first == ElasticGPU(
        metadata=ObjectMeta(name="egpuc-uid-claim-c-0"),
        spec=ElasticGPUSpec(
            node_name="n0",
            capacity={"elasticgpu.io/gpu-core": "30", "elasticgpu.io/gpu-memory": "1000"},
            slice=piece,
            claim_ref=reference,
            reclaim_policy="Retain",
        ),
    )
    assert (second.name, second.spec.slice and second.spec.slice.index) == ("egpuc-uid-claim-c-1", 1)


def test_retained_slices_are_released_and_those_that_were_never_made_are_made() -> None:
    gone, klass = held(deleted=True), gpu_class(retain=True)
    made = claim_slices(gone, "Retain")
    bound, released = shown(made, "Bound"), shown(made, "Released")
    assert reconcile_claim(gone, klass, bound, []) == [
        *(SetSlicePhase(piece, "Released") for piece in bound),
        unprotected(gone),
    ]
    assert reconcile_claim(gone, klass, [released[0], bound[1]], []) == [
        SetSlicePhase(bound[1], "Released"),
        unprotected(gone),
    ]
    assert reconcile_claim(gone, klass, [], []) == [
        *(CreateSlice(piece) for piece in made),
        unprotected(gone),
    ]
    assert reconcile_claim(gone, klass, released[:1], []) == [
        CreateSlice(made[1]),
        unprotected(gone),
    ]
    assert reconcile_claim(gone, klass, released, ["p/app"]) != [], "a user keeps it"


def test_of_a_lost_claim_nothing_is_made_again() -> None:
    gone = held("Lost", deleted=True)
    assert reconcile_claim(gone, gpu_class(retain=True), [], []) == [unprotected(gone)]


def test_slices_go_with_a_claim_of_a_class_that_deletes_or_that_is_gone() -> None:
    gone = held(deleted=True)
    pieces = shown(claim_slices(gone, "Delete"), "Bound")
    assert reconcile_claim(gone, gpu_class(), pieces, []) == [
        *map(DeleteSlice, pieces),
        unprotected(gone),
    ]
    assert reconcile_claim(gone, None, [], []) == [unprotected(gone)]
    assert reclaim_policy(None, []) == "Delete"
    assert reclaim_policy(gpu_class(retain=True), pieces) == "Delete", "as written on the slice when it was made"
    kept = shown(claim_slices(gone, "Retain"), "Bound")
    assert reconcile_claim(gone, gpu_class(), kept, [])[0] == SetSlicePhase(kept[0], "Released")


def test_an_orphan_is_released_once() -> None:
    for piece in claim_slices(held(), "Retain"):
        assert reconcile_gpu(piece, None) == [SetSlicePhase(piece, "Released")]
        assert reconcile_gpu(shown([piece], "Released")[0], None) == []


@pytest.mark.parametrize("phase", ["Bound", "Lost"])
def test_a_claim_that_was_bound_and_misses_a_slice_is_lost(phase: ClaimPhase) -> None:
    what = held(phase)
    kept = shown(claim_slices(what, "Delete")[:1], "Bound")
    assert CreateSlice(claim_slices(what, "Delete")[1]) not in reconcile_claim(what, gpu_class(), kept, [])
    patch = next(one for one in reconcile_claim(what, gpu_class(), kept, []) if isinstance(one, PatchClaimStatus))
    assert (patch.claim, patch.phase, patch.bound_gpus) == (what, "Lost", ())


def test_bound_slices_alone_say_that_a_claim_was_bound() -> None:
    what = held("Pending")
    pieces = claim_slices(what, "Delete")
    before = replace(what, status=replace(what.status, bound_gpus=[piece.name for piece in pieces]))
    actions = reconcile_claim(before, gpu_class(), shown(pieces[:1], "Bound"), [])
    (patch,) = (one for one in actions if isinstance(one, PatchClaimStatus))
    assert (patch.phase, patch.bound_gpus) == ("Lost", tuple(piece.name for piece in pieces)), "and which they were"


def test_what_a_first_round_left_out_the_next_makes() -> None:
    what = held("Pending")
    first, second = claim_slices(what, "Delete")
    done = shown([first], "Available")
    assert reconcile_claim(what, gpu_class(), done, [])[:2] == [CreateSlice(second), SetSlicePhase(done[0], "Bound")]


def test_what_a_first_round_left_out_goes_the_way_of_what_it_made_though_the_class_says_otherwise_now() -> None:
    what = held("Pending")
    first, second = claim_slices(what, "Retain")
    assert reconcile_claim(what, gpu_class(), shown([first], "Bound"), [])[0] == CreateSlice(second)


def test_a_claim_without_cards_has_no_slices() -> None:
    assert slice_names(claim("c")) == []
    assert claim_slices(claim("c"), "Delete") == []


def test_the_status_is_written_in_the_words_of_the_api() -> None:
    assert PatchClaimStatus(claim("c"), "Bound", ("a", "b"), ("p/app",), {"x": "3"}, "Burstable").merge_patch() == {
        "status": {
            "phase": "Bound",
            "boundGPUs": ["a", "b"],
            "usedBy": ["p/app"],
            "capacity": {"x": "3"},
            "qos": "Burstable",
        }
    }


def test_a_lost_claim_is_not_bound_again() -> None:
    lost = replace(claim("c"), status=ElasticGPUClaimStatus(phase="Lost"))
    assert not needs_binding(lost, gpu_class())
    assert needs_binding(claim("c"), gpu_class())


def test_every_pod_of_the_claim_counts_whatever_stands_between_them() -> None:
    cache = cluster()
    cache.class_changed(gpu_class(wait=True))
    what = claim("c")
    cache.claim_changed(what)
    one = placed(claim_pod("b", "c"), place(cache, claim_pod("b", "c")))
    two = replace(one, metadata=replace(one.metadata, name="a", uid="uid-a"))
    waiting = claim_pod("w", "c")
    unreadable = replace(one, metadata=replace(one.metadata, annotations={names.CLAIM_PREFIXES[0] + "app": ""}))
    assert claim_users(what, [waiting, one, unreadable, two]) == ["a/app", "b/app"]
