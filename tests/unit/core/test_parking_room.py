"""Classes whose slices share room: many are placed on a card and on its host's memory, and no more than fit."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.objects import ClaimAllocation, ElasticGPUClaimStatus
from egpu.core.admission import validate_class
from egpu.core.claims.lifecycle import claim_slices
from egpu.core.demand.claims import claim_demand, claim_resources
from egpu.core.explain_node import explain_node
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.card_usage import card_usage
from egpu.core.placement.published import slice_allocation
from egpu.core.provisioners import provisioner
from egpu_base.api.kubernetes import Node
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import InvalidDemand
from support.objects import card, claim, claim_pod, cluster, gpu_class, place, why_not

GIB = 1024
TERMS = {"parking": "true", "parkingResident": "3%", "parkingIdle": "60s"}
SIXTY: dict[str, Any] = {names.GPU_CORE: 5, names.GPU_MEMORY: 60 * GIB}


def node(host_mib: int) -> Node:
    return Node(metadata=ObjectMeta(name="n0", annotations={names.PARKING_MEMORY: str(host_mib)}))


def on_one_card(host_mib: int = 1 << 20, memory_mib: int = 80 * GIB) -> SchedulerCache:
    cache = cluster()
    cache.class_changed(gpu_class("shares", names.VCUDA, wait=True, parameters=TERMS))
    cache.class_changed(gpu_class("plain", names.VCUDA, wait=True))
    cache.node_changed(node(host_mib))
    cache.gpu_changed(card("n0", 0, memory_mib=memory_mib))
    return cache


def ask(cache: SchedulerCache, name: str, amounts: dict[str, Any] = SIXTY, kind: str = "shares") -> Any:
    cache.claim_changed(claim(name, amounts, kind))
    return claim_pod(f"pod-{name}", name)


def test_ten_slices_of_sixty_share_a_card_of_eighty() -> None:
    cache = on_one_card()
    given = [place(cache, ask(cache, f"c{at}")).containers["app"] for at in range(10)]
    (share,) = given[0].cards
    assert (share.memory_mib, share.resident_mib) == (60 * GIB, 1844)
    assert given[0].park_idle_seconds == 60
    assert not given[0].park_stays
    plan = provisioner(given[0].provisioner).prepare("pod p", given[0], {share.uuid: 0})
    assert plan.room_bytes == 1844 << 20
    # 80 GiB less ten times what is always there, less the largest rest
    left = 80 * GIB - 10 * 1844 - (60 * GIB - 1844)
    assert int(cache.ledger.memory_free[0, 0]) == left
    assert cache.ledger.overcommits() == []


def test_a_class_lets_pods_stay_on_the_card() -> None:
    cache = on_one_card()
    cache.class_changed(gpu_class("stays", names.VCUDA, wait=True, parameters={**TERMS, "parkingStay": "true"}))
    assert place(cache, ask(cache, "c", kind="stays")).containers["app"].park_stays
    (problem,) = validate_class(gpu_class("stays", names.VCUDA, parameters={**TERMS, "parkingStay": "yes"}), None)
    assert problem.field == "parameters[parkingStay]"


def test_a_class_says_how_long_a_program_may_keep_the_room_from_others() -> None:
    cache = on_one_card()
    assert place(cache, ask(cache, "a")).containers["app"].park_patience_seconds == 0, "for ever"
    cache.class_changed(gpu_class("ends", names.VCUDA, wait=True, parameters={**TERMS, "parkingPatience": "10m"}))
    assert place(cache, ask(cache, "b", kind="ends")).containers["app"].park_patience_seconds == 600


def test_the_largest_slice_still_fits_beside_what_is_always_there() -> None:
    """Plain slices keep all that they ask for."""
    cache = on_one_card()
    place(cache, ask(cache, "plain", {names.GPU_CORE: 5, names.GPU_MEMORY: 19 * GIB}, "plain"))
    place(cache, ask(cache, "a"))
    assert "needed" in why_not(cache, ask(cache, "b")), "60 and 19 and 1.8 more are more than 80"
    place(cache, ask(cache, "c", {names.GPU_CORE: 5, names.GPU_MEMORY: 20 * GIB}))


def test_a_card_that_is_too_small_for_the_largest_is_over_committed() -> None:
    cache = on_one_card()
    place(cache, ask(cache, "a"))
    place(cache, ask(cache, "b"))
    cache.gpu_changed(card("n0", 0, memory_mib=61 * GIB))
    (found,) = cache.ledger.overcommits()
    assert "MiB are allocated" in found.reason


def test_a_retained_slice_counts_as_its_claim_did() -> None:
    cache = on_one_card()
    given = place(cache, ask(cache, "a"))
    status = ElasticGPUClaimStatus(allocation=ClaimAllocation(node="n0", container=given.containers["app"]))
    (made,) = claim_slices(replace(claim("a", SIXTY, "shares"), status=status), "Retain")
    assert list(card_usage(slice_allocation(made)).values()) == list(card_usage(given).values())


def test_host_memory_is_never_promised_twice() -> None:
    cache = on_one_card(host_mib=130 * GIB)
    place(cache, ask(cache, "a"))
    place(cache, ask(cache, "b"))
    assert cache.ledger.host_memory("n0") == (130 * GIB, 10 * GIB)
    reason = why_not(cache, ask(cache, "c"))
    assert "asks for 60 GiB of the host's memory for parked slices; 10 GiB of 130 GiB are left" in reason
    place(cache, ask(cache, "plain", {names.GPU_CORE: 5, names.GPU_MEMORY: 1 * GIB}, "plain"))
    said = explain_node(node(130 * GIB), cache, ())
    assert "the node's own memory for parked slices: 10 GiB of 130 GiB free" in said.details
    cache.node_changed(node(200 * GIB))
    place(cache, ask(cache, "d"))


def test_a_node_without_it_takes_none() -> None:
    cache = on_one_card(host_mib=0)
    assert "--parking-memory" in why_not(cache, ask(cache, "a"))


def test_kubernetes_counts_what_is_always_on_the_card() -> None:
    demand = claim_demand(claim("c", SIXTY, "shares"), gpu_class("shares", names.VCUDA, parameters=TERMS))
    assert claim_resources(demand, provisioner(names.VCUDA)) == {names.GPU_CORE: 5, names.GPU_MEMORY: 1844}


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        ({"parkingResident": "25%"}, "parkingResident"),
        ({"parking": "true", "parkingResident": "0%"}, "parkingResident"),
        ({"parking": "true", "parkingResident": "100%"}, "parkingResident"),
        ({"parking": "true", "parkingResident": "25"}, "parkingResident"),
        ({"parking": "true", "parkingIdle": "60s"}, "parkingIdle"),
        ({"parking": "true", "parkingStay": "true"}, "parkingStay"),
        ({"parkingStay": "true"}, "parkingStay"),
        ({"parking": "true", "parkingResident": "25%", "parkingIdle": "1d"}, "parkingIdle"),
        ({"parking": "true", "parkingResident": "25%", "parkingIdle": "25h"}, "parkingIdle"),
        ({"parking": "true", "parkingPatience": "10m"}, "parkingPatience"),
        ({"parkingPatience": "10m"}, "parkingPatience"),
        ({"parking": "true", "parkingResident": "25%", "parkingPatience": "59s"}, "parkingPatience"),
        ({"parking": "true", "parkingResident": "25%", "parkingPatience": "never"}, "parkingPatience"),
    ],
)
def test_terms_that_are_refused_by_name(terms: dict[str, str], field: str) -> None:
    klass = gpu_class("shares", names.VCUDA, parameters=terms)
    assert [one.field for one in validate_class(klass, None)] == [f"parameters[{field}]"]
    with pytest.raises(InvalidDemand):
        claim_demand(claim("c", SIXTY, "shares"), klass)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_placed_in_any_order_fits(seed: int) -> None:
    """Cards and host are never promised twice, and a node that passed the filter can be bound."""
    chance = random.Random(seed)
    cache = on_one_card(host_mib=300 * GIB)
    for at in range(12):
        kind = chance.choice(["shares", "plain"])
        amounts: dict[str, Any] = {names.GPU_CORE: 3, names.GPU_MEMORY: chance.randint(1, 40) * GIB}
        pod = ask(cache, f"c{at}", amounts, kind)
        if cache.filter(cache.request(pod), ["n0"]).fits:
            place(cache, pod)
        else:
            assert "needed" in why_not(cache, pod) or "host" in why_not(cache, pod)
        assert cache.ledger.overcommits() == []
        assert cache.ledger.host_memory("n0")[1] >= 0
