"""A refusal names the field as a kubectl user writes it, says what is wrong with it, and stands beside the others."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodDemand, encode
from egpu.api.objects import (
    ClaimAllocation,
    ElasticGPU,
    ElasticGPUClaim,
    ElasticGPUClaimStatus,
    ElasticGPUClass,
    ElasticGPUSpec,
    Slice,
)
from egpu.core.admission import (
    Violation,
    validate_binding,
    validate_claim,
    validate_class,
    validate_egpu,
    validate_pod_create,
    validate_pod_update,
)
from egpu_base.api.kubernetes import Binding
from egpu_base.api.objects import ObjectMeta, ObjectReference
from support.objects import CORE, card, claim, container, gpu_class, pod, slice_pod

CLASSES = {"shared": gpu_class(), "aliyun": gpu_class("aliyun", names.GPUSHARE)}


def refused(found: Sequence[Violation], *expected: tuple[str, str]) -> None:
    """Exactly these fields, in this order, each for a reason that says so."""
    assert [violation.field for violation in found] == [field for field, _ in expected]
    for violation, (_, words) in zip(found, expected, strict=True):
        assert words in violation.reason


# --- pods -----------------------------------------------------------------------------------------------------------


def test_a_container_whose_demand_cannot_be_read_is_not_blamed_for_its_slot_too() -> None:
    what = pod("p", container("app", {CORE: 150, names.SLOT: 1}))
    refused(
        validate_pod_create(what, {}, {}),
        ("spec.containers[app].resources.limits[docker.com/vcuda-core]", "multiple of 100"),
    )


def test_even_an_empty_demand_is_the_webhooks_to_write() -> None:
    what = pod("p", container("app"), annotations={names.DEMAND: encode(PodDemand(containers={}))})
    refused(
        validate_pod_create(what, {}, {}),
        ("metadata.annotations[elasticgpu.io/demand]", "does not match what this pod asks for"),
    )


def test_a_pod_that_names_its_node_is_told_to_use_a_selector() -> None:
    what = slice_pod("p")
    bound = replace(what, spec=replace(what.spec, node_name="n0"))
    refused(validate_pod_create(bound, {}, {}), ("spec.nodeName", "nodeSelector"))


def test_an_annotation_that_must_stay_and_what_to_do_instead() -> None:
    old = slice_pod("p")
    new = replace(old, metadata=replace(old.metadata, annotations={names.ALLOCATION: "{}"}))
    refused(validate_pod_update(old, new), ("metadata.annotations[elasticgpu.io/allocation]", "create another pod"))


def test_who_wrote_a_binding_that_only_the_scheduler_may_write() -> None:
    forged = Binding(metadata=ObjectMeta(name="p", annotations={names.ALLOCATION: "{}"}), target=ObjectReference())
    refused(
        validate_binding(forged, username="mallory", groups=[], trusted=[]),
        ("metadata.annotations[elasticgpu.io/allocation]", "mallory may not write it"),
    )


# --- claims ---------------------------------------------------------------------------------------------------------


def bound(what: ElasticGPUClaim) -> ElasticGPUClaim:
    given = ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=())
    return replace(what, status=ElasticGPUClaimStatus(allocation=ClaimAllocation(node="n0", container=given)))


def test_a_claim_keeps_its_class() -> None:
    moved = claim("c", class_name="other")
    refused(validate_claim(moved, claim("c"), CLASSES), ("spec", "the class 'shared' of a claim cannot change"))


def test_a_bound_claim_keeps_its_size() -> None:
    larger = claim("c", {names.GPU_CORE: 50})
    refused(validate_claim(larger, bound(claim("c")), CLASSES), ("spec.resources", "cannot change to this size"))


@pytest.mark.parametrize(
    ("asks", "class_name", "field"),
    [
        ({names.GPU_MEMORY: "8193Mi"}, "shared", "spec.resources.requests[elasticgpu.io/gpu-memory]"),
        (
            {names.GPU_CORE: 10, names.GPU_MEMORY: "8193Mi"},
            "shared",
            "spec.resources.requests[elasticgpu.io/gpu-memory]",
        ),
        ({names.ALIYUN_GPU_MEM: 9}, "aliyun", "spec.resources.requests[aliyun.com/gpu-mem]"),
    ],
)
def test_memory_that_no_card_has_is_refused_at_the_resource_that_asks_for_it(
    asks: dict[str, int | float | str], class_name: str, field: str
) -> None:
    found = validate_claim(claim("c", asks, class_name), None, CLASSES, largest_mib=8192)
    refused(found, (field, "the largest card has 8192 MiB"))


def test_all_the_memory_of_the_largest_card_may_be_asked_for() -> None:
    assert validate_claim(claim("c", {names.GPU_MEMORY: "8192Mi"}), None, CLASSES, largest_mib=8192) == []


# --- classes --------------------------------------------------------------------------------------------------------


def test_a_binding_mode_spelled_twice_must_be_the_same() -> None:
    twice = ElasticGPUClass(
        provisioner=names.VCUDA, e_gpu_binding_mode="Immediate", egpu_binding_mode="WaitForFirstConsumer"
    )
    refused(
        validate_class(twice, None), ("egpuBindingMode", "WaitForFirstConsumer contradicts eGPUBindingMode; keep one")
    )


def test_a_class_that_stays_what_it_was_is_accepted() -> None:
    same = gpu_class(parameters={"memoryUnit": "MiB"})
    assert validate_class(same, same) == []


def test_what_a_class_may_not_say_and_what_it_may_not_change_are_refused_together() -> None:
    changed = gpu_class(provisioner="acme.com/gpu")
    refused(
        validate_class(changed, gpu_class()),
        ("provisioner", "choose one of elasticgpu.io/physical"),
        ("provisioner", "create another class"),
    )


# --- cards and slices -----------------------------------------------------------------------------------------------

OWNER = ObjectReference(name="c", uid="uid-c")
SHARE = Slice(provisioner=names.VCUDA, mode="shared", uuid="GPU-n0-0", index=0, minor=0, core=30, memory_mib=4096)
SLICE = ElasticGPU(spec=ElasticGPUSpec(node_name="n0", slice=SHARE, claim_ref=OWNER))


def changed(what: ElasticGPU, **spec: object) -> ElasticGPU:
    return replace(what, spec=replace(what.spec, **spec))


@pytest.mark.parametrize(
    "neither_nor_both", [changed(SLICE, slice=None), changed(SLICE, physical_gpu=card("n0", 0).spec.physical_gpu)]
)
def test_an_object_is_a_card_or_a_slice(neither_nor_both: ElasticGPU) -> None:
    refused(validate_egpu(neither_nor_both, None), ("spec", "exactly one of physicalGPU"))


@pytest.mark.parametrize("what", [card("n0", 0), SLICE], ids=["card", "slice"])
def test_a_card_and_a_slice_are_on_a_node(what: ElasticGPU) -> None:
    refused(validate_egpu(changed(what, node_name=""), None), ("spec.nodeName", "names no node"))


@pytest.mark.parametrize("owner", [None, ObjectReference(name="c")], ids=["none", "without uid"])
def test_a_slice_belongs_to_a_claim_that_is_named_with_its_uid(owner: ObjectReference | None) -> None:
    refused(validate_egpu(changed(SLICE, claim_ref=owner), None), ("spec.claimRef", "with its uid"))


def test_a_slice_is_served_by_a_technology_that_there_is() -> None:
    unknown = changed(SLICE, slice=replace(SHARE, provisioner="acme.com/gpu"))
    refused(validate_egpu(unknown, None), ("spec.slice.provisioner", "provisioner 'acme.com/gpu' does not exist"))


@pytest.mark.parametrize(
    "other",
    [changed(SLICE, slice=replace(SHARE, uuid="GPU-other")), changed(SLICE, claim_ref=replace(OWNER, uid="uid-d"))],
    ids=["card", "owner"],
)
def test_a_slice_changes_its_size_only(other: ElasticGPU) -> None:
    assert validate_egpu(changed(SLICE, slice=replace(SHARE, memory_mib=8192)), SLICE) == []
    refused(validate_egpu(other, SLICE), ("spec", "only the size of a slice can change"))


def test_a_card_does_not_become_another_one() -> None:
    known, other = card("n0", 0), card("n0", 1).spec.physical_gpu
    assert validate_egpu(known, known) == []
    refused(
        validate_egpu(changed(known, physical_gpu=other), known), ("spec.physicalGPU.uuid", "publish another object")
    )
    refused(validate_egpu(changed(known, node_name="n1"), known), ("spec.nodeName", "cannot change"))


def test_all_that_is_wrong_with_a_slice_is_said_at_once() -> None:
    wrong = changed(SLICE, node_name="", claim_ref=None, slice=replace(SHARE, provisioner="acme.com/gpu"))
    refused(
        validate_egpu(wrong, SLICE),
        ("spec.nodeName", "names no node"),
        ("spec.claimRef", "names no claim"),
        ("spec.slice.provisioner", "choose one of"),
        ("spec", "only the size of a slice can change"),
    )
