"""Claims that several pods use together: who may, what is counted for them, and when one more pod has to wait."""

import time

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import PodAllocation
from egpu.api.objects import ClaimAllocation, ElasticGPUClaim, ElasticGPUClaimStatus
from egpu.core.admission import mutate_pod, validate_class
from egpu.core.explain import explain_pod
from egpu.core.gangs.placing import place_gang
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.requests import CLAIM_CONTAINER, claim_allocations
from egpu.core.rests import Rests
from egpu.core.waking import would_fit
from egpu_base.api.kubernetes import Pod
from support.objects import (
    BINPACK,
    claim,
    claim_pod,
    cluster,
    fits,
    gang_pod,
    gpu_class,
    place,
    placed,
    slice_pod,
    why_not,
)

CARD = ("n0", "GPU-n0-0")
SHAREABLE = {"shareable": "true"}
RESTS = Rests(clock=time.monotonic, work=time.thread_time)


def free(cache: SchedulerCache) -> tuple[int, int]:
    return cache.ledger.snapshot()[CARD][:2]


def show_bound(cache: SchedulerCache, what: ElasticGPUClaim, *, phase: str = "Bound") -> ElasticGPUClaim:
    cache.claim_changed(what)
    allocation = cache.ranking.choose(cache.claim_request(what), "n0", BINPACK)
    held = ClaimAllocation(node="n0", container=allocation.containers[CLAIM_CONTAINER])
    status = ElasticGPUClaimStatus(phase="Bound" if phase == "Bound" else None, allocation=held)
    done = replace(what, status=status)
    cache.claim_changed(done)
    return done


def test_pods_of_a_shareable_claim_have_its_cards_together_and_it_counts_once() -> None:
    cache = cluster(nodes=2)
    cache.class_changed(gpu_class(parameters=SHAREABLE))
    held = show_bound(cache, claim("c")).status.allocation
    assert held is not None
    assert held.container.shared_claim == "uid-claim-c"
    allocations: list[PodAllocation] = []
    for name in ("p", "q", "r"):
        assert fits(cache, claim_pod(name, "c"), "n0", "n1") == ("n0",)
        allocations.append(place(cache, claim_pod(name, "c")))
        assert free(cache) == (70, 12288)
    assert {one.containers["app"].cards for one in allocations} == {held.container.cards}
    assert {one.containers["app"].shared_claim for one in allocations} == {"uid-claim-c"}
    assert cache.claim_users("default/c") == {(f"uid-{name}", "app") for name in "pqr"}
    for name in "pqr":
        cache.pod_deleted(f"uid-{name}")
        assert free(cache) == (70, 12288), "what the claim has is given back with the claim"
    cache.claim_deleted("uid-claim-c")
    assert free(cache) == (100, 16384)


def test_who_has_it_together_is_explained() -> None:
    cache = cluster()
    cache.class_changed(gpu_class(parameters=SHAREABLE))
    show_bound(cache, claim("c"))
    first = placed(claim_pod("p", "c"), place(cache, claim_pod("p", "c")))
    assert "other pods that use it: none" in "\n".join(explain_pod(first, cache, ["n0"], BINPACK).details)
    place(cache, claim_pod("q", "c"))
    said = "\n".join(explain_pod(first, cache, ["n0"], BINPACK).details)
    assert "claim c is shared by several pods; other pods that use it: pod default/q" in said


def test_without_the_parameter_one_pod_uses_a_claim_and_the_reason_says_so() -> None:
    cache = cluster()
    cache.class_changed(gpu_class(parameters={"shareable": "false"}))
    held = show_bound(cache, claim("c")).status.allocation
    assert held is not None
    assert not held.container.shared_claim
    place(cache, claim_pod("p", "c"))
    why = why_not(cache, claim_pod("q", "c"))
    assert "which pod default/p uses; its class allows one pod at a time" in why
    assert "strategy Recreate" in why, "what helps a Deployment that rolls"
    assert "a claim of its own by a template" in why, "what helps one with several replicas"


def test_what_a_claim_was_bound_with_counts_not_what_its_class_says_by_now() -> None:
    cache = cluster()
    cache.class_changed(gpu_class(parameters=SHAREABLE))
    show_bound(cache, claim("c"))
    cache.class_deleted("shared")
    place(cache, claim_pod("p", "c"))
    assert fits(cache, claim_pod("q", "c")) == ("n0",)
    cache.class_changed(gpu_class())
    assert fits(cache, claim_pod("q", "c")) == ("n0",)


def test_the_second_pod_waits_until_the_first_can_no_longer_lose_the_cards() -> None:
    """Until a claim is Bound, its cards are taken back when the binding of the pod that has them fails."""
    cache = cluster()
    cache.class_changed(gpu_class(wait=True, parameters=SHAREABLE))
    waiting, first, second = claim("c"), claim_pod("p", "c"), claim_pod("q", "c")
    cache.claim_changed(waiting)
    request = cache.request(first)
    allocation = cache.ranking.choose(request, "n0", BINPACK)
    (held,) = claim_allocations(request, allocation).values()
    cache.assume_pod(first, allocation)
    assert "uses the claim c, which is being bound" in why_not(cache, second)
    cache.assume_claim(waiting.uid, held)
    for phase in (None, "Pending"):
        cache.claim_changed(replace(waiting, status=ElasticGPUClaimStatus(phase=phase, allocation=held)))
        assert "uses the claim c, which is being bound" in why_not(cache, second)
    with cache.without([first.uid]):
        assert "which is being bound" in why_not(cache, second), "so nobody is evicted for it"
    cache.claim_changed(replace(waiting, status=ElasticGPUClaimStatus(phase="Bound", allocation=held)))
    assert fits(cache, second) == ("n0",)


def gang_of(*claims: str) -> list[Pod]:
    """Members of one gang, each with its claim, or 30 % of its own."""
    members: list[Pod] = []
    for number, name in enumerate(claims):
        user = claim_pod(f"m{number}", name) if name else slice_pod(f"m{number}", core=30)
        terms = gang_pod("m", size=len(claims)).annotations
        members.append(replace(user, metadata=replace(user.metadata, annotations={**user.annotations, **terms})))
    return members


def told(cache: SchedulerCache, members: list[Pod]) -> tuple[list[Pod], str]:
    """Which members would fit, and the reason of the first where none would."""
    for member in members:
        cache.pod_changed(member)
        cache.gangs.offer(member, ["n0"])
    gang = cache.gangs.of(members[0])
    assert gang is not None
    verdict = place_gang(cache, gang, BINPACK, pod=members[0], nodes=["n0"])
    return would_fit(members, cache, ["n0"], BINPACK, RESTS), verdict.reason


def test_a_gang_uses_one_claim_together_where_its_class_allows_it_and_it_has_cards() -> None:
    cache = cluster()
    cache.class_changed(gpu_class(parameters=SHAREABLE))
    show_bound(cache, claim("c", {names.GPU_CORE: 60, names.GPU_MEMORY: 4096}))
    members = gang_of("c", "c", "")
    assert told(cache, members) == (members, "")
    last = slice_pod("zz", core=10)
    assert would_fit([*members, last], cache, ["n0"], BINPACK, RESTS) == [*members, last], "it is counted once"


def test_a_gang_never_gives_one_claim_two_places() -> None:
    cache = cluster()
    cache.class_changed(gpu_class(wait=True, parameters=SHAREABLE))
    cache.class_changed(gpu_class("alone", wait=True))
    cache.claim_changed(claim("c"))
    cache.claim_changed(claim("d", class_name="alone"))
    assert "m0 and m1 use the claim c, which is not bound yet" in told(cache, gang_of("c", "c"))[1]
    for name in ("m0", "m1"):
        cache.pod_deleted(f"uid-{name}")
    assert "m0 and m1 use the claim d, which only one pod can use" in told(cache, gang_of("d", "d"))[1]


def test_nobody_is_counted_with_what_several_have_together() -> None:
    """Else a node that has the claim's cards would have no room for its second pod."""
    classes = {"shared": gpu_class(parameters=SHAREABLE)}
    patch = mutate_pod(claim_pod("p", "c"), {"c": claim("c")}, classes)
    written = {step["path"].rpartition("/")[2] for step in patch if "/resources/limits/" in step["path"]}
    assert written == {names.SLOT.replace("/", "~1")}


@pytest.mark.parametrize("technology", [names.GPUSHARE, names.POOL])
def test_what_cannot_hold_several_pods_to_one_slice_says_so(technology: str) -> None:
    (found,) = validate_class(gpu_class(provisioner=technology, parameters=SHAREABLE), None)
    assert found.field == "parameters[shareable]"
    assert found.reason.startswith(f"{technology} does not support several pods on one slice; use one of")
    assert names.QGPU in found.reason


@pytest.mark.parametrize("technology", [names.VCUDA, names.VGPU, names.QGPU, names.PHYSICAL])
def test_what_can_may(technology: str) -> None:
    assert validate_class(gpu_class(provisioner=technology, parameters=SHAREABLE), None) == []
    (found,) = validate_class(gpu_class(provisioner=technology, parameters={"shareable": "yes"}), None)
    assert found.reason == "'yes' is not one of true, false"


def test_a_placed_pod_is_read_as_it_was_bound() -> None:
    cache = cluster()
    cache.class_changed(gpu_class(parameters=SHAREABLE))
    show_bound(cache, claim("c"))
    allocation = cache.ranking.choose(cache.request(claim_pod("p", "c")), "n0", BINPACK)
    cache.pod_changed(placed(claim_pod("p", "c"), allocation))
    assert cache.pod_allocation("uid-p") == allocation
