"""From an allocation to what a node agent sets up."""

import pytest

from egpu.api import names
from egpu.api.allocation import ContainerAllocation
from egpu.api.kubernetes import Pod
from egpu.core.placement.binding import binding_annotations
from egpu.core.placement.cache import Feed
from egpu.core.placement.ledger import Card
from egpu.core.provisioners.preparation import DeviceLimit, prepare
from egpu.errors import NotSupported, Unavailable
from support.objects import BINPACK, claim, claim_pod, cluster, container, gpu_class, pod, slice_pod

CARDS = [Card(uuid=f"GPU-n0-{index}", index=index, minor=index, memory_mib=16384) for index in range(2)]


def given(what: Pod, feed: Feed | None = None) -> ContainerAllocation:
    feed = feed or cluster(cards=2)
    return feed.choose(feed.request(what), "n0", BINPACK).containers["app"]


def test_a_vcuda_slice_is_enforced_by_a_policy_page() -> None:
    found = prepare("app", given(slice_pod("p")), CARDS)
    assert found.policy is not None
    assert found.policy.devices == (DeviceLimit("GPU-n0-0", 2560 * 1024 * 1024, 20, 20, 20),)
    assert (found.policy.work_conserving, found.minors, found.interposed) == (False, (0,), True)
    assert found.environment == {"NVIDIA_VISIBLE_DEVICES": "GPU-n0-0"}


def test_idle_compute_may_be_used_where_the_class_says_so() -> None:
    feed = cluster()
    feed.class_changed(gpu_class(wait=True, parameters={"computeMode": "share"}))
    feed.claim_changed(claim("c"))
    found = prepare("app", given(claim_pod("p", "c"), feed), CARDS)
    assert found.policy is not None
    assert found.policy.work_conserving
    assert (found.policy.devices[0].core_percent, found.policy.devices[0].core_ceiling_percent) == (30, 100)


def test_memory_beyond_the_share_is_spilled_up_to_the_factor_of_the_class() -> None:
    feed = cluster()
    feed.class_changed(gpu_class(wait=True, parameters={"memoryOversubscription": "1.25"}))
    feed.claim_changed(claim("c"))
    found = prepare("app", given(claim_pod("p", "c"), feed), CARDS)
    assert found.policy is not None
    (device,) = found.policy.devices
    assert (device.memory_bytes, device.spill_bytes) == (4096 << 20, 1024 << 20)


def test_whole_cards_and_gpushare_need_no_policy() -> None:
    whole = prepare("app", given(pod("p", container("app", {"nvidia.com/gpu": 2}))), CARDS)
    assert (whole.policy, whole.minors, whole.isolation) == (None, (0, 1), "whole-card")
    shared = prepare("app", given(pod("p", container("app", {"aliyun.com/gpu-mem": 3}))), CARDS)
    assert (shared.policy, shared.isolation) == (None, "environment")
    assert shared.environment == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-n0-0",
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
    }


def test_cards_are_found_by_uuid_after_a_reboot_gave_them_other_minors() -> None:
    moved = [Card(uuid="GPU-n0-0", index=1, minor=7, memory_mib=16384)]
    assert prepare("app", given(slice_pod("p")), moved).minors == (7,)


def test_a_card_that_is_gone_is_named() -> None:
    with pytest.raises(Unavailable, match="GPU-n0-0, which this node does not have"):
        prepare("app", given(slice_pod("p")), CARDS[1:])


def test_a_technology_that_is_not_built_is_named() -> None:
    with pytest.raises(NotSupported, match=names.VGPU):
        prepare("app", ContainerAllocation(provisioner=names.VGPU, mode="shared", cards=()), CARDS)


def test_annotation_names_of_long_container_names_stay_within_63_characters_and_apart() -> None:
    one, two = names.cards_annotation("x" * 62 + "a"), names.cards_annotation("x" * 62 + "b")
    assert one != two
    assert len(one.partition("/")[2]) == len(two.partition("/")[2]) == 63
    assert names.cards_annotation("x" * 57) == names.CARDS_PREFIX + "x" * 57


def test_the_binding_carries_cards_per_container_and_gpushares_annotations() -> None:
    feed = cluster(cards=2)
    both = pod("p", container("a", {"aliyun.com/gpu-mem": 3}), container("b", {"nvidia.com/gpu": 1}))
    written = binding_annotations(feed.choose(feed.request(both), "n0", BINPACK), assume_time_ns=42)
    del written[names.ALLOCATION]
    assert written == {
        "elasticgpu.io/cards-a": "GPU-n0-1",
        "elasticgpu.io/cards-b": "GPU-n0-0",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "42",
    }
