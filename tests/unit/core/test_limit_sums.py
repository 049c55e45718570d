"""A class bounds the sum of limits of compute on a card: in words, when claims are made, placed and edited."""

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation
from egpu.api.objects import ElasticGPUClass
from egpu.core.admission import validate_claim, validate_class
from egpu.core.demand.claims import claim_demand
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.container_allocation import container_allocation
from egpu.core.placement.ledger import Holder
from egpu.core.resizing import check_room, ordered
from egpu_base.errors import DoesNotFit, InvalidDemand
from support.objects import claim, cluster, container, fits, gpu_class, pod, why_not

BOUNDED = gpu_class("bounded", parameters={"maxCoreLimits": "150"})


def held(cache: SchedulerCache, name: str, limit: int, klass: ElasticGPUClass = BOUNDED) -> ContainerAllocation:
    """Let a claim of 30 % with this limit hold card 0."""
    asks = claim(name, class_name=klass.name)
    resources = replace(asks.spec.resources, limits={names.GPU_CORE: limit})
    demand = claim_demand(replace(asks, spec=replace(asks.spec, resources=resources)), klass)
    given = container_allocation(demand, cache.ledger, "n0", (0,))
    cache.ledger.hold(Holder("claim", name), PodAllocation(node="n0", containers={"claim": given}))
    return given


def test_a_pod_without_a_class_keeps_within_the_bound_of_a_card() -> None:
    cache = cluster()
    held(cache, "one", 100)
    for limit, room in ((50, ("n0",)), (51, ())):
        what = pod("p", container("app", {names.GPU_CORE: 20, names.GPU_MEMORY: 1024}),
                   annotations={names.GPU_CORE_LIMIT: str(limit)})  # fmt: skip
        assert fits(cache, what) == room
    words = "has slices with limits of 100 % of compute, 51 % more are above the 150 % that the class of one of them"
    assert words in why_not(cache, what)


def test_a_slice_without_a_share_of_compute_counts_as_a_whole_card() -> None:
    cache = cluster()
    held(cache, "one", 60)
    assert fits(cache, pod("p", container("app", {names.GPU_CORE: 60, names.GPU_MEMORY: 1024})))
    assert not fits(cache, pod("p", container("app", {names.GPU_MEMORY: 1024})))


def test_a_card_whose_slices_exceed_the_bound_takes_nothing_new_and_says_so() -> None:
    """As after an allocation by kube-scheduler, which does not know of limits."""
    cache = cluster()
    for name in ("one", "two"):
        held(cache, name, 100)
    (found,) = cache.ledger.overcommits()
    assert "limits of compute add up to 200 %, and a class allows 150 % (maxCoreLimits)" in found.reason
    assert not fits(cache, pod("p", container("app", {names.GPU_CORE: 5, names.GPU_MEMORY: 1024})))


def test_a_limit_is_raised_only_as_far_as_the_bound() -> None:
    cache = cluster()
    held(cache, "one", 100)
    two = held(cache, "two", 40)
    for limit, fine in ((50, True), (60, False)):
        wanted = PodAllocation(node="n0", containers={"claim": ordered(two, two.cards, None, core_limit=limit)})
        if fine:
            check_room(cache.ledger, Holder("claim", "two"), wanted)
            continue
        with pytest.raises(DoesNotFit, match=r"card 0 .* limits of 160 % of compute, .* allows 150 %"):
            check_room(cache.ledger, Holder("claim", "two"), wanted)


def test_a_claim_that_exceeds_the_bound_alone_is_refused() -> None:
    low = gpu_class("low", parameters={"maxCoreLimits": "50", "computeMode": "share"})
    (found,) = validate_claim(claim("c", class_name="low"), None, {"low": low})
    assert "may use up to 100 % of a card, and class low allows 50 % for all slices of a card" in str(found)
    memory_only = claim("c", {names.GPU_MEMORY: 1024}, class_name="low")
    with pytest.raises(InvalidDemand, match="may use up to 100 %"):
        claim_demand(memory_only, gpu_class("low", parameters={"maxCoreLimits": "50"}))


@pytest.mark.parametrize(
    ("provisioner", "value", "words"),
    [(names.VCUDA, "much", "not a number"), (names.GPUSHARE, "300", "gives out no idle compute")],
)
def test_a_wrong_bound_is_refused_with_the_class(provisioner: str, value: str, words: str) -> None:
    (found,) = validate_class(gpu_class(provisioner=provisioner, parameters={"maxCoreLimits": value}), None)
    assert words in str(found)
