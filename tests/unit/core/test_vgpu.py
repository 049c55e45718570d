"""`elasticgpu.io/vgpu`: fixed profiles, from the names that ask for them to the policy page that holds them."""

import pytest

from egpu.api import names
from egpu.api.allocation import ContainerAllocation
from egpu.api.vocabularies import VGPUS
from egpu.core.admission import validate_claim, validate_class, validate_pod_create
from egpu.core.placement.cache import SchedulerCache
from egpu.core.provisioners import NodeTotals, provisioner
from egpu.core.provisioners.preparation import DeviceLimit
from egpu_base.api.kubernetes import Pod
from support.objects import claim, claim_pod, cluster, container, fits, gpu_class, place, pod, slice_pod, why_not

QUARTER, HALF, WHOLE = (f"{names.VGPU}-{parts}" for parts in (4, 2, 1))
GIB = 1 << 30


def profile_pod(name: str, profile: str, cards: int = 1) -> Pod:
    return pod(name, container("app", {profile: cards}))


def limits(allocation: ContainerAllocation) -> tuple[DeviceLimit, ...]:
    minors = {share.uuid: share.minor for share in allocation.cards}
    return provisioner(allocation.provisioner).prepare("app", allocation, minors).policy


def of_class(cache: SchedulerCache, scheduler: str | None) -> DeviceLimit:
    """Of a quarter of a card, asked for by a claim."""
    parameters = {} if scheduler is None else {"vgpuScheduler": scheduler}
    klass = gpu_class("v", names.VGPU, wait=True, parameters=parameters)
    assert validate_class(klass, None) == []
    cache.class_changed(klass)
    cache.claim_changed(claim("c", {QUARTER: 1}, "v"))
    (found,) = limits(place(cache, claim_pod("p", "c")).containers["app"])
    return found


def test_a_name_is_a_profile_of_fixed_memory_and_compute() -> None:
    given = place(cluster(), profile_pod("p", QUARTER)).containers["app"]
    assert (given.provisioner, given.mode, given.vocabulary) == (names.VGPU, "shared", "vgpu-4")
    (limit,) = limits(given)
    assert (limit.memory_bytes, limit.core_percent, limit.work_conserving) == (4 * GIB, 25, False)


def test_several_are_of_different_cards() -> None:
    given = place(cluster(cards=2), profile_pod("p", HALF, cards=2)).containers["app"]
    assert len({share.uuid for share in given.cards}) == 2
    assert [(limit.core_percent, limit.memory_bytes) for limit in limits(given)] == [(50, 8 * GIB)] * 2


def test_one_of_one_is_a_whole_card() -> None:
    given = place(cluster(), profile_pod("p", WHOLE)).containers["app"]
    assert given.exclusive
    assert limits(given) == ()


@pytest.mark.parametrize(
    ("scheduler", "core", "work_conserving"),
    [(None, 25, False), ("fixed-share", 25, False), ("equal-share", 25, True), ("best-effort", 0, False)],
)
def test_the_class_says_who_computes_when(scheduler: str | None, core: int, work_conserving: bool) -> None:
    limit = of_class(cluster(), scheduler)
    assert (limit.core_percent, limit.work_conserving, limit.memory_bytes) == (core, work_conserving, 4 * GIB)


def test_amounts_are_refused_and_so_are_other_schedulers() -> None:
    klass = gpu_class("v", names.VGPU)
    (refused,) = validate_claim(claim("c", class_name="v"), None, {"v": klass})
    assert refused.reason.startswith("elasticgpu.io/vgpu provides fixed profiles; ask for one of elasticgpu.io/vgpu-1")
    (wrong,) = validate_class(gpu_class("v", names.VGPU, parameters={"vgpuScheduler": "fair"}), None)
    assert wrong.reason == "'fair' is not one of best-effort, equal-share, fixed-share"
    (wrong,) = validate_class(gpu_class("v", names.VGPU, parameters={"memoryOversubscription": "2"}), None)
    assert "does not support oversubscription" in wrong.reason
    mixed = pod("p", container("app", {QUARTER: 1, HALF: 1}))
    assert "belong to two vocabularies" in validate_pod_create(mixed, {}, {})[0].reason


def test_another_technology_holds_to_a_profile_as_its_class_says() -> None:
    cache = cluster()
    cache.class_changed(gpu_class("q", names.QGPU, wait=True))
    cache.claim_changed(claim("c", {QUARTER: 1}, "q"))
    given = place(cache, claim_pod("p", "c")).containers["app"]
    assert given.provisioner == names.QGPU
    assert [(share.core, share.memory_mib) for share in given.cards] == [(25, 4096)]


def test_a_card_has_one_technology_and_no_more_profiles_than_fit() -> None:
    cache = cluster()
    place(cache, profile_pod("a", HALF))
    place(cache, profile_pod("b", QUARTER))
    assert f"has slices of {names.VGPU}" in why_not(cache, slice_pod("other"))
    assert fits(cache, profile_pod("c", HALF)) == ()
    place(cache, profile_pod("c", QUARTER))
    assert fits(cache, profile_pod("d", f"{names.VGPU}-8")) == ()


def test_a_node_publishes_how_many_of_each_its_cards_are() -> None:
    published = provisioner(names.VGPU).capacity(NodeTotals(cards=2, memory_mib=32768, tflops=1.0))
    assert published == {one.cards: 2 * one.parts for one in VGPUS}


SIZES = {"vgpuProfiles": "small: 10 %, 4Gi; large: 50 %, 8Gi"}
SMALL, LARGE = f"{names.VGPU}-small", f"{names.VGPU}-large"


def test_a_class_has_names_of_its_own_for_sizes() -> None:
    klass = gpu_class("v", names.VGPU, wait=True, parameters=SIZES)
    assert validate_class(klass, None) == []
    assert validate_claim(claim("c", {SMALL: 2}, "v"), None, {"v": klass}) == []
    cache = cluster(cards=2)
    cache.class_changed(klass)
    cache.claim_changed(claim("c", {SMALL: 2}, "v"))
    given = place(cache, claim_pod("p", "c")).containers["app"]
    assert (given.provisioner, given.mode, given.vocabulary) == (names.VGPU, "shared", "vgpu")
    assert [(limit.core_percent, limit.memory_bytes) for limit in limits(given)] == [(10, 4 * GIB)] * 2


def test_such_a_name_means_something_in_its_class_only() -> None:
    other = gpu_class("o", names.VGPU)
    (refused,) = validate_claim(claim("c", {SMALL: 1}, "o"), None, {"o": other})
    assert refused.field == f"spec.resources.requests[{SMALL}]"
    klass = gpu_class("v", names.VGPU, parameters=SIZES)
    (refused,) = validate_claim(claim("c", {SMALL: 1, LARGE: 1}, "v"), None, {"v": klass})
    assert "a claim has one profile" in refused.reason
    (refused,) = validate_claim(claim("c", {SMALL: 65}, "v"), None, {"v": klass})
    assert refused.reason == "asks for 65 cards; ask for 1 to 64"
    alone = pod("p", container("app", {SMALL: 1}))
    assert "not supported" in validate_pod_create(alone, {}, {"v": klass})[0].reason


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("small", "'small' is not a profile; write NAME: PERCENT %, MEMORY"),
        ("4: 10 %, 4Gi", "'4: 10 %, 4Gi' is not a profile"),
        ("small: 10 %, much", "'small: 10 %, much': "),
        ("small: 100 %, 4Gi", "is not a part of a card"),
        ("a: 1 %, 1Gi; a: 2 %, 2Gi", "elasticgpu.io/vgpu-a is defined twice"),
        ("; ".join(f"a{number}: 1 %, 1Gi" for number in range(33)), "has 33 profiles; the most is 32"),
    ],
)
def test_a_class_whose_sizes_cannot_be_read_is_refused(written: str, reason: str) -> None:
    (wrong,) = validate_class(gpu_class("v", names.VGPU, parameters={"vgpuProfiles": written}), None)
    assert wrong.field == "parameters[vgpuProfiles]"
    assert reason in wrong.reason


def test_a_card_in_equal_size_mode_takes_its_size_only() -> None:
    cache = cluster()
    cache.class_changed(gpu_class("e", names.VGPU, wait=True, parameters={**SIZES, "vgpuMode": "equal-size"}))
    for name, asked in (("q", QUARTER), ("r", QUARTER), ("h", HALF), ("s", SMALL)):
        cache.claim_changed(claim(name, {asked: 1}, "e"))
    place(cache, claim_pod("a", "q"))
    assert f"has slices of {names.VGPU} (1/4 only)" in why_not(cache, claim_pod("b", "h"))
    assert "(1/4 only)" in why_not(cache, claim_pod("c", "s"))
    assert "(1/4 only)" in why_not(cache, profile_pod("d", QUARTER))
    place(cache, claim_pod("e", "r"))
    cache.pod_deleted("uid-a")
    cache.claim_deleted("uid-q")
    assert fits(cache, claim_pod("b", "h")) == ()
    cache.pod_deleted("uid-e")
    cache.claim_deleted("uid-r")
    place(cache, claim_pod("b", "h"))


def test_a_card_of_mixed_sizes_takes_none_in_equal_size_mode() -> None:
    cache = cluster()
    cache.class_changed(gpu_class("e", names.VGPU, wait=True, parameters={"vgpuMode": "equal-size"}))
    cache.claim_changed(claim("q", {QUARTER: 1}, "e"))
    place(cache, profile_pod("a", QUARTER))
    assert f"has slices of {names.VGPU}" in why_not(cache, claim_pod("b", "q"))
