"""Objects in, holders out: who holds cards, from when and until when."""

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import PodAllocation, encode
from egpu.api.objects import ClaimAllocation, ElasticGPUClaim, ElasticGPUClaimStatus
from egpu.core.claims.lifecycle import claim_slices
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu.core.placement.requests import CLAIM_CONTAINER, claim_allocations
from egpu.core.placement.reservations import Reservation, Reserved
from support.objects import (
    BINPACK,
    card,
    claim,
    claim_pod,
    cluster,
    container,
    ended,
    fits,
    gpu_class,
    place,
    placed,
    pod,
    slice_pod,
    why_not,
)

CARD = ("n0", "GPU-n0-0")


def free(cache: SchedulerCache) -> tuple[int, int]:
    return cache.ledger.snapshot()[CARD][:2]


def bound(what: ElasticGPUClaim, allocation: PodAllocation) -> ElasticGPUClaim:
    """The claim as the watch shows it after the extender wrote its status."""
    held = ClaimAllocation(node=allocation.node, container=allocation.containers[CLAIM_CONTAINER])
    return replace(what, status=ElasticGPUClaimStatus(phase="Bound", allocation=held))


def bind_claim(cache: SchedulerCache, what: ElasticGPUClaim, node: str = "n0") -> ElasticGPUClaim:
    cache.claim_changed(what)
    done = bound(what, cache.ranking.choose(cache.claim_request(what), node, BINPACK))
    cache.claim_changed(done)
    return done


# --- pods -----------------------------------------------------------------------------------------------------------


def test_an_assumed_pod_holds_until_the_watch_shows_it_and_an_older_event_does_not_drop_it() -> None:
    cache = cluster()
    what = slice_pod("p")
    allocation = cache.ranking.choose(cache.request(what), "n0", BINPACK)
    cache.assume_pod(what, allocation)
    assert free(cache) == (80, 13824)
    cache.pod_changed(what)  # an event from before the binding
    assert free(cache) == (80, 13824)
    cache.pod_changed(placed(what, allocation))
    cache.pod_changed(placed(what, allocation))
    assert free(cache) == (80, 13824)


def test_a_failed_binding_leaves_nothing_behind() -> None:
    cache = cluster()
    what = slice_pod("p")
    cache.assume_pod(what, cache.ranking.choose(cache.request(what), "n0", BINPACK))
    cache.forget_pod(what.uid)
    assert free(cache) == (100, 16384)
    assert cache.ledger.holders() == {}


def test_a_pod_holds_until_it_has_ended_not_until_it_is_being_deleted() -> None:
    cache = cluster()
    what = slice_pod("p")
    bound_pod = placed(what, place(cache, what))
    deleting = replace(bound_pod, metadata=replace(bound_pod.metadata, deletion_timestamp="2030-01-01T00:00:00Z"))
    cache.pod_changed(deleting)
    assert free(cache) == (80, 13824)
    cache.pod_changed(ended(deleting, still_running=True))
    assert free(cache) == (80, 13824)
    cache.pod_changed(ended(deleting))
    assert free(cache) == (100, 16384)


def test_a_pod_deleted_twice_gives_back_once() -> None:
    cache = cluster()
    place(cache, slice_pod("a"))
    place(cache, slice_pod("b"))
    cache.pod_deleted("uid-a")
    cache.pod_deleted("uid-a")
    assert free(cache) == (80, 13824)


def test_what_nobody_of_ours_wrote_is_reported_and_shows_the_card_as_full() -> None:
    cache = cluster()
    what = slice_pod("p", core=60)
    allocation = place(cache, what)
    cache.pod_changed(placed(slice_pod("forged", core=60), allocation))
    assert free(cache) == (0, 0)
    assert cache.problems() == ["card GPU-n0-0 of node n0 has 100 % of compute, 120 % are allocated"]
    assert "has 0 % of compute free, 1 % needed" in why_not(cache, slice_pod("x", core=1))
    cache.pod_deleted("uid-forged")
    assert free(cache) == (40, 13824)
    assert cache.problems() == []


def test_two_modes_on_one_card_are_reported() -> None:
    cache = cluster()
    place(cache, slice_pod("p"))
    other = cluster()
    whole = pod("w", container("app", {"nvidia.com/gpu": 1}))
    cache.pod_changed(placed(whole, other.ranking.choose(other.request(whole), "n0", BINPACK)))
    assert "several modes at once" in cache.problems()[0]
    assert "over-committed and takes no new work" in why_not(cache, slice_pod("x", core=1))


def test_a_card_that_is_reserved_in_another_mode_is_not_called_over_committed() -> None:
    cache, other = cluster(), cluster()
    place(cache, slice_pod("p"))
    whole = pod("w", container("app", {"nvidia.com/gpu": 1}))
    reserved = Reserved(allocation=other.ranking.choose(other.request(whole), "n0", BINPACK), until=1)
    cache.reservations.keep(Reservation.of(whole, reserved))
    assert cache.problems() == []
    assert "reserved for another pod" in why_not(cache, slice_pod("x", core=1))


def test_a_corrupt_allocation_is_reported_and_holds_nothing() -> None:
    cache = cluster()
    allocation = cache.ranking.choose(cache.request(slice_pod("p")), "n0", BINPACK)
    bad = placed(slice_pod("p"), allocation)
    annotations = {names.ALLOCATION: encode(allocation).replace("version", "wersion")}
    cache.pod_changed(replace(bad, metadata=replace(bad.metadata, annotations=annotations)))
    assert free(cache) == (100, 16384)
    assert "pod default/p" in cache.problems()[0]
    cache.pod_deleted(bad.uid)
    assert cache.problems() == []


def test_the_same_card_published_twice_counts_once() -> None:
    cache = cluster()
    twin = card("n0", 0)
    cache.gpu_changed(replace(twin, metadata=replace(twin.metadata, name="n0-other")))
    assert len(cache.ledger.cards("n0")) == 1
    assert "a second time" in cache.problems()[0]


# --- claims ---------------------------------------------------------------------------------------------------------


def test_a_bound_claim_is_a_reservation_that_its_pod_consumes() -> None:
    cache = cluster(nodes=2)
    cache.class_changed(gpu_class())
    bind_claim(cache, claim("c"))
    assert free(cache) == (70, 12288)
    user = claim_pod("p", "c")
    assert fits(cache, user, "n0", "n1") == ("n0",)
    assert "claim c of container app is bound to node n0" in why_not(cache, user, "n1")
    allocation = place(cache, user)
    assert allocation.containers["app"].claim == "c"
    assert free(cache) == (70, 12288)  # not twice
    cache.pod_deleted(user.uid)
    assert free(cache) == (70, 12288)  # and still reserved
    cache.claim_deleted("uid-claim-c")
    assert free(cache) == (100, 16384)


def test_a_claim_is_used_by_one_pod_at_a_time() -> None:
    cache = cluster()
    cache.class_changed(gpu_class())
    bind_claim(cache, claim("c"))
    place(cache, claim_pod("p", "c"))
    assert "uses the claim c, which pod default/p uses" in why_not(cache, claim_pod("q", "c"))
    assert cache.claim_user("default/c") == "default/p"
    cache.pod_deleted("uid-p")
    assert fits(cache, claim_pod("q", "c")) == ("n0",)


def test_a_pod_waits_for_an_immediate_claim_and_says_for_what() -> None:
    cache = cluster()
    cache.class_changed(gpu_class())
    assert "claim c, which does not exist" in why_not(cache, claim_pod("p", "c"))
    cache.claim_changed(claim("c"))
    assert "claim c, which is not bound" in why_not(cache, claim_pod("p", "c"))


def test_a_claim_that_waits_for_its_consumer_gets_cards_with_the_pod() -> None:
    cache = cluster()
    cache.class_changed(gpu_class(wait=True))
    waiting, user = claim("c"), claim_pod("p", "c")
    cache.claim_changed(waiting)
    request = cache.request(user)
    allocation = cache.ranking.choose(request, "n0", BINPACK)
    (held,) = claim_allocations(request, allocation).values()
    cache.assume_claim(waiting.uid, held)
    cache.assume_pod(user, allocation)
    assert free(cache) == (70, 12288)
    cache.claim_changed(replace(waiting, status=ElasticGPUClaimStatus(allocation=held)))
    cache.pod_changed(placed(user, allocation))
    assert free(cache) == (70, 12288)
    cache.pod_deleted(user.uid)
    assert free(cache) == (70, 12288)


def test_an_assumed_claim_holds_until_the_watch_shows_it_or_it_failed() -> None:
    cache = cluster()
    cache.class_changed(gpu_class())
    what = claim("c")
    cache.claim_changed(what)
    allocation = cache.ranking.choose(cache.claim_request(what), "n0", BINPACK)
    cache.assume_claim(what.uid, ClaimAllocation(node="n0", container=allocation.containers[CLAIM_CONTAINER]))
    cache.claim_changed(what)  # an event from before the write
    assert free(cache) == (70, 12288)
    cache.forget_claim(what.uid)
    assert free(cache) == (100, 16384)


def test_a_card_whose_object_is_being_deleted_takes_nothing_new() -> None:
    cache = cluster()
    going = card("n0", 0)
    cache.gpu_changed(replace(going, metadata=replace(going.metadata, deletion_timestamp="2030-01-01T00:00:00Z")))
    assert fits(cache, slice_pod("p")) == ()


def test_a_pod_keeps_what_its_claim_held_when_the_claim_is_torn_away() -> None:
    cache = cluster()
    cache.class_changed(gpu_class())
    bind_claim(cache, claim("c"))
    place(cache, claim_pod("p", "c"))
    cache.claim_deleted("uid-claim-c")
    assert free(cache) == (70, 12288)
    cache.pod_deleted("uid-p")
    assert free(cache) == (100, 16384)


def test_a_claim_on_a_lost_card_keeps_its_pod_waiting() -> None:
    cache = cluster()
    cache.class_changed(gpu_class())
    bind_claim(cache, claim("c"))
    cache.gpu_changed(card("n0", 0, healthy=False))
    assert "which is unhealthy" in why_not(cache, claim_pod("p", "c"))
    cache.gpu_deleted(card("n0", 0).name)
    assert "which is gone" in why_not(cache, claim_pod("p", "c"))


def test_a_cordoned_card_takes_nothing_new_and_keeps_what_it_has() -> None:
    cache = cluster()
    cache.class_changed(gpu_class())
    bind_claim(cache, claim("c"))
    cordoned = card("n0", 0)
    cache.gpu_changed(replace(cordoned, spec=replace(cordoned.spec, unschedulable=True)))
    assert "which is cordoned" in why_not(cache, claim_pod("p", "c"))
    assert "is cordoned" in why_not(cache, pod("q", container("app", {names.GPU_CORE: 10})))
    assert cache.ledger.holders()
    cache.gpu_changed(cordoned)
    assert place(cache, claim_pod("p", "c"))


def test_a_bound_claim_outlives_its_class() -> None:
    cache = cluster()
    cache.class_changed(gpu_class())
    bind_claim(cache, claim("c"))
    cache.class_deleted("shared")
    assert place(cache, claim_pod("p", "c")).containers["app"].provisioner == names.VCUDA


def test_a_retained_slice_holds_after_its_claim_and_not_beside_it() -> None:
    cache = cluster()
    cache.class_changed(gpu_class(retain=True))
    done = bind_claim(cache, claim("c"))
    (piece,) = claim_slices(done, "Retain")
    cache.gpu_changed(piece)
    assert free(cache) == (70, 12288)
    cache.claim_deleted(done.uid)
    assert free(cache) == (70, 12288)
    cache.gpu_deleted(piece.name)
    assert free(cache) == (100, 16384)


def test_a_restart_sees_the_same() -> None:
    cache = cluster(nodes=2, cards=2)
    cache.class_changed(gpu_class())
    done = bind_claim(cache, claim("c"))
    pods = [slice_pod("a"), claim_pod("b", "c")]
    pods = [placed(what, place(cache, what)) for what in pods]
    cards = [card(f"n{n}", c) for n in range(2) for c in range(2)]
    again = rebuild(reversed(cards), reversed(pods), [done])
    assert again.ledger.snapshot() == cache.ledger.snapshot()
    assert again.ledger.holders() == cache.ledger.holders()


# --- requests -------------------------------------------------------------------------------------------------------


def test_a_request_is_made_once_until_the_pod_or_a_class_changes() -> None:
    cache, what = cluster(), slice_pod("p")
    first = cache.request(what)
    assert cache.request(slice_pod("p")) is first
    other = slice_pod("p", core=30)
    assert cache.request(other) != first
    again = cache.request(other)
    cache.class_changed(gpu_class("any"))
    assert cache.request(other) is not again


def test_a_request_follows_the_claim_that_its_pod_uses() -> None:
    cache = cluster()
    user = claim_pod("p", "data")
    assert "does not exist" in cache.request(user).waiting
    cache.class_changed(gpu_class())
    cache.claim_changed(claim("data"))
    assert "is not bound" in cache.request(user).waiting
    bind_claim(cache, claim("data"))
    assert not cache.request(user).waiting
