"""From an allocation to what a node agent sets up."""

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerAllocation
from egpu.core.placement.binding_annotations import binding_annotations
from egpu.core.placement.cache import SchedulerCache
from egpu.core.provisioners import provisioner
from egpu.core.provisioners.preparation import INTERPOSER, REMOTE_LIBRARIES, DeviceLimit, Preparation
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import NotSupported, TerminalError
from support.objects import BINPACK, claim, claim_pod, cluster, container, gpu_class, pod, slice_pod

MINORS = {"GPU-n0-0": 0, "GPU-n0-1": 1}


def given(what: Pod, cache: SchedulerCache | None = None) -> ContainerAllocation:
    cache = cache or cluster(cards=2)
    return cache.ranking.choose(cache.request(what), "n0", BINPACK).containers["app"]


def prepare(allocation: ContainerAllocation, minors: dict[str, int] | None = MINORS) -> Preparation:
    return provisioner(allocation.provisioner).prepare("container app", allocation, minors)


def test_a_vcuda_slice_is_enforced_by_a_policy_page() -> None:
    found = prepare(given(slice_pod("p")))
    limit = DeviceLimit(uuid="GPU-n0-0", minor=0, memory_bytes=2560 << 20, core_percent=20, weight=20)
    assert found.policy == (limit,)
    assert (found.minors, found.libraries, found.executor) == ((0,), INTERPOSER, None)


def test_idle_compute_may_be_used_where_the_class_says_so() -> None:
    cache = cluster()
    cache.class_changed(gpu_class(wait=True, parameters={"computeMode": "share"}))
    cache.claim_changed(claim("c"))
    found = prepare(given(claim_pod("p", "c"), cache))
    assert (found.policy[0].core_percent, found.policy[0].work_conserving) == (30, True)


def test_memory_beyond_the_share_is_spilled_up_to_the_factor_of_the_class() -> None:
    cache = cluster()
    cache.class_changed(gpu_class(wait=True, parameters={"memoryOversubscription": "1.25"}))
    cache.claim_changed(claim("c"))
    found = prepare(given(claim_pod("p", "c"), cache))
    (device,) = found.policy
    assert (device.memory_bytes, device.spill_bytes) == (4096 << 20, 1024 << 20)


def test_whole_cards_and_gpushare_give_devices_and_nothing_else() -> None:
    assert prepare(given(pod("p", container("app", {"nvidia.com/gpu": 2})))) == Preparation(minors=(0, 1))
    assert prepare(given(pod("p", container("app", {"docker.com/vcuda-core": 200})))) == Preparation(minors=(0, 1))
    assert prepare(given(pod("p", container("app", {"aliyun.com/gpu-mem": 3})))) == Preparation(minors=(0,))


def test_an_executor_has_the_cards_of_qgpu_here_and_of_the_pool_anywhere() -> None:
    near = Preparation(libraries=REMOTE_LIBRARIES, executor="here")
    qgpu = given(pod("p", container("app", {names.QGPU_CORE: 10, names.QGPU_MEMORY: 4})))
    assert prepare(qgpu) == near
    pooled = replace(qgpu, provisioner=names.POOL)
    assert prepare(pooled) == near
    assert prepare(pooled, None) == Preparation(libraries=REMOTE_LIBRARIES, executor="elsewhere")
    with pytest.raises(NotSupported, match="cannot use another node's cards"):
        prepare(qgpu, None)


def test_cards_are_found_by_uuid_after_a_reboot_gave_them_other_minors() -> None:
    assert prepare(given(slice_pod("p")), {"GPU-n0-0": 7}).minors == (7,)


def test_a_card_that_is_gone_is_named() -> None:
    with pytest.raises(TerminalError, match="card GPU-n0-0 is not on this node"):
        prepare(given(slice_pod("p")), {"GPU-n0-1": 1})


def test_annotation_names_of_long_container_names_stay_within_63_characters_and_apart() -> None:
    one, two = names.cards_annotation("x" * 62 + "a"), names.cards_annotation("x" * 62 + "b")
    assert one != two
    assert len(one.partition("/")[2]) == len(two.partition("/")[2]) == 63
    assert names.cards_annotation("x" * 57) == names.CARDS_PREFIX + "x" * 57


def test_the_binding_carries_cards_per_container_and_gpushares_annotations() -> None:
    cache = cluster(cards=2)
    both = pod("p", container("a", {"aliyun.com/gpu-mem": 3}), container("b", {"nvidia.com/gpu": 1}))
    written = binding_annotations(cache.ranking.choose(cache.request(both), "n0", BINPACK), assume_time_ns=42)
    del written[names.ALLOCATION]
    assert written == {
        "elasticgpu.io/cards-a": "GPU-n0-1",
        "elasticgpu.io/cards-b": "GPU-n0-0",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "42",
    }
