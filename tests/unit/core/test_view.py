"""The cluster as one looks at it: every figure is the ledger's or a container's own, and nothing is counted twice."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import encode
from egpu.api.objects import ClaimAllocation, ElasticGPUClaim, ElasticGPUClaimStatus
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.requests import CLAIM_CONTAINER
from egpu.core.view import ClusterView, SliceKey, SliceUsage, User, Waits, cluster_view
from egpu_base.api.kubernetes import Node, NodeStatus, Pod
from egpu_base.api.objects import Condition, ObjectMeta
from support.objects import (
    BINPACK,
    card,
    claim,
    claim_pod,
    cluster,
    container,
    gang_pod,
    gpu_class,
    place,
    placed,
    pod,
    slice_pod,
)

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
MIB = 1024 * 1024


def seen(
    cache: SchedulerCache,
    pods: Sequence[Pod] = (),
    claims: Sequence[ElasticGPUClaim] = (),
    usage: Mapping[SliceKey, SliceUsage] | None = None,
    nodes: Sequence[Node] = (),
) -> ClusterView:
    return cluster_view(cache, nodes=nodes, pods=pods, claims=claims, gpus=(), usage=usage or {}, now=NOW)


def bound(cache: SchedulerCache, what: Pod, node: str = "n0") -> Pod:
    return placed(what, place(cache, what, node))


def waiting(what: Pod, cache: SchedulerCache, *, minutes: int = 5) -> Pod:
    """As the API server has a pod that was admitted so long ago, and has no node."""
    annotations = what.annotations | {names.DEMAND: encode(cache.request(what).demand)}
    made = (NOW - timedelta(minutes=minutes)).isoformat()
    return replace(what, metadata=replace(what.metadata, annotations=annotations, creation_timestamp=made))


def test_a_slice_is_shown_below_its_card_with_what_is_given_and_what_is_used() -> None:
    cache = cluster(nodes=1, cards=2)
    first, second = bound(cache, slice_pod("a", core=30)), bound(cache, slice_pod("b", core=20))
    used = SliceUsage(memory_bytes=100 * MIB, core_ratio=0.25, idle_seconds=3.0, age_seconds=60.0)
    view = seen(cache, [first, second], usage={SliceKey("default", "a", "app", "GPU-n0-0"): used})
    shared, free = view.nodes[0].cards
    assert [(one.name, one.core_percent, one.memory_mib, one.used) for one in shared.slices] == [
        ("a", 30, 2560, used),
        ("b", 20, 2560, None),
    ]
    assert (shared.core_given, shared.memory_given_mib, shared.mode) == (50, 5120, names.VCUDA)
    assert (shared.core_used_ratio, shared.memory_used_bytes, shared.idle_seconds) == (0.25, 100 * MIB, 3.0)
    assert (free.core_given, free.slices, free.mode, free.core_used_ratio, free.idle_seconds) == (0, (), "", None, None)
    totals = view.totals
    assert (totals.cards, totals.free_cards, totals.core_given, totals.core_free) == (2, 1, 50, 150)
    assert totals.fragmentation == pytest.approx(50 / 150)


def test_what_is_free_of_one_kind_where_the_other_is_used_up_is_stranded() -> None:
    cache = cluster(nodes=1, cards=2)
    pods = [
        bound(cache, slice_pod("all-memory", core=30, blocks=64)),
        bound(cache, slice_pod("half", core=50, blocks=8)),
        bound(cache, slice_pod("other-half", core=50, blocks=8)),
    ]
    totals = seen(cache, pods).totals
    assert (totals.stranded_core, totals.stranded_memory_mib) == (70, 12288)
    assert totals.fragmentation == 1.0


def test_a_claim_is_one_slice_whoever_uses_it() -> None:
    cache = cluster()
    cache.class_changed(gpu_class(parameters={"shareable": "true"}))
    asked = claim("c")
    cache.claim_changed(asked)
    chosen = cache.ranking.choose(cache.claim_request(asked), "n0", BINPACK)
    held = ClaimAllocation(node="n0", container=chosen.containers[CLAIM_CONTAINER])
    asked = replace(asked, status=ElasticGPUClaimStatus(phase="Bound", allocation=held))
    cache.claim_changed(asked)
    pods = [bound(cache, claim_pod(name, "c")) for name in ("p", "q")]
    used = SliceUsage(memory_bytes=7)
    view = seen(cache, pods, [asked], {SliceKey("default", "q", "app", "GPU-n0-0"): used})
    (one,) = view.slices()
    assert (one.holder.kind, one.name, one.claim, one.core_percent) == ("claim", "c", "c", 30)
    assert one.users == (User("default", "p", "app"), User("default", "q", "app"))
    assert one.used == used
    assert view.claims == {"Bound": 1}
    assert view.totals.core_given == 30


def test_a_card_with_more_given_out_than_it_has_shows_how_much() -> None:
    cache = cluster()
    first = bound(cache, slice_pod("a", core=80))
    forged = replace(first, metadata=replace(first.metadata, name="b", uid="uid-b"))
    cache.pod_changed(forged)
    view = seen(cache, [first, forged])
    (one,) = view.cards()
    assert one.core_given == 160
    assert one.overcommitted == "has 100 % of compute, 160 % are allocated"
    assert view.totals.overcommitted_cards == 1
    assert len(view.problems) == 1


def test_nodes_are_there_with_cards_or_without_and_sick_cards_offer_nothing() -> None:
    cache = cluster(nodes=1)
    cache.gpu_changed(card("n0", 1, healthy=False))
    ready = NodeStatus(conditions=[Condition(type="Ready", status="True")])
    view = seen(cache, nodes=[Node(metadata=ObjectMeta(name="bare"), status=ready)])
    assert [(node.name, node.ready, len(node.cards)) for node in view.nodes] == [("bare", True, 0), ("n0", False, 2)]
    assert (view.totals.unhealthy_cards, view.totals.core_free, view.totals.core_percent) == (1, 100, 200)


def test_every_waiting_pod_says_for_what() -> None:
    cache = cluster(nodes=1)
    cache.class_changed(gpu_class())
    cache.claim_changed(claim("c"))
    running = bound(cache, slice_pod("running", core=90))
    gated = waiting(slice_pod("gated"), cache)
    pods = [
        running,
        waiting(slice_pod("large", core=50), cache, minutes=9),
        waiting(slice_pod("small", core=10, blocks=4), cache, minutes=8),
        waiting(claim_pod("claims", "c"), cache, minutes=7),
        waiting(gang_pod("member"), cache, minutes=6),
        replace(gated, spec=replace(gated.spec, scheduling_gates=[{"name": "later"}])),
        pod("no-cards", container("app")),
    ]
    for one in pods:
        cache.pod_changed(one)
    view = seen(cache, pods)
    assert [(one.name, one.reason) for one in view.pending] == [
        ("large", Waits.ROOM),
        ("small", Waits.SCHEDULER),
        ("claims", Waits.CLAIM),
        ("member", Waits.GANG),
        ("gated", Waits.GATE),
    ]
    large = view.pending[0]
    assert (large.seconds, large.cards, large.gpus) == (540.0, 1, 0.5)
    assert large.message == "none of 1 nodes has room for it (app 50 % and 2560 MiB of a card)"
