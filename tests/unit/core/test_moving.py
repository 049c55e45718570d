"""What may be moved on a live cluster, and that its ledger is asked before anything is proposed."""

from typing import Any

from msgspec.structs import replace

from egpu.api import names
from egpu.core.moves.defrag import Move, Proposal, propose
from egpu.core.moves.movable import Movers
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu.core.policies.baselines import BestFit
from egpu.core.policies.fleet import Placement
from egpu.core.policies.shapes import Shape
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import ObjectMeta, OwnerReference
from support.mig import mig_card
from support.objects import SPREAD, card, cluster, container, gang_pod, place, placed, pod, slice_pod


def shown(cache: SchedulerCache, what: Pod, node: str) -> Pod:
    """The pod, bound there, as the watch shows it."""
    return placed(what, place(cache, what, node, SPREAD))


def whole(name: str, cards: int = 2) -> Pod:
    return pod(name, container("app", {names.NVIDIA_GPU: cards}))


def move(movers: Movers, name: str, to: tuple[str, int]) -> Move:
    origin = next(one.place for one in movers.placed if one.name == name)
    row = [machine.name for machine in movers.fleet.machines].index(to[0])
    return Move(name, origin, Placement(row, (to[1],)), 500)


def room_for(movers: Movers, pending: Pod, cards: int) -> Proposal | None:
    def accept(one: Proposal) -> bool:
        return movers.accepts(one.moves, pending, movers.fleet.machines[one.place.row].name)

    return propose(movers.fleet, BestFit(), movers.placed, Shape(0, 0, cards, 1000), accept=accept)


def test_moves_that_the_ledger_can_do_are_proposed_and_nothing_is_changed() -> None:
    cache = cluster(nodes=2, cards=2)
    pods = [shown(cache, slice_pod(f"p{at}", core=50, blocks=4), f"n{at // 2}") for at in range(4)]
    books, turnover = cache.ledger.snapshot(), cache.ranking.fleet().departures
    movers = Movers(cache, pods)
    assert len(movers.placed) == 4
    found = room_for(movers, whole("big"), 2)
    assert found is not None
    assert len(found.moves) == 2
    assert cache.ledger.snapshot() == books
    assert cache.ranking.fleet().departures == turnover


def test_a_card_that_another_technology_shares_is_no_place_to_move_to() -> None:
    """By amounts alone the pod would fit there."""
    cache = cluster(nodes=2)
    ours = shown(cache, slice_pod("a", core=30, blocks=4), "n0")
    theirs = shown(cache, pod("b", container("app", {names.ALIYUN_GPU_MEM: 2})), "n1")
    movers = Movers(cache, [ours, theirs])
    assert not movers.accepts([move(movers, ours.key, ("n1", 0))])
    assert room_for(movers, whole("big", 1), 1) is None


def test_cards_in_mig_mode_are_no_places_to_move_to_and_hide_none() -> None:
    """Each node has one beside an ordinary card, larger than that, and empty but for an instance."""
    cards = [each for node in ("n0", "n1") for each in (mig_card(node), card(node, 1))]
    cache = rebuild(cards, [], [])
    ours = [shown(cache, slice_pod(f"p{at}", core=50, blocks=4), f"n{at}") for at in range(2)]
    instance = shown(cache, pod("cut", container("app", {names.MIG_PREFIX + "1g.5gb": 1})), "n0")
    movers = Movers(cache, [*ours, instance])
    assert [one.name for one in movers.placed] == [one.key for one in ours]
    found = room_for(movers, whole("big", 1), 1)
    assert found is not None
    (moved,) = found.moves
    assert moved.origin.cards == moved.target.cards == (1,)
    assert moved.origin.row != moved.target.row


def test_the_pending_pod_itself_is_tried_too() -> None:
    cache = cluster(nodes=2)
    ours = shown(cache, slice_pod("a", core=30, blocks=4), "n0")
    movers = Movers(cache, [ours])
    away = [move(movers, ours.key, ("n1", 0))]
    assert movers.accepts(away, whole("big", 1), "n0")
    assert not movers.accepts(away, whole("bigger", 2), "n0")
    assert not movers.accepts([], whole("big", 1), "n0")


def fixed(what: Pod, **spec: Any) -> Pod:
    return replace(what, spec=replace(what.spec, **spec))


def test_who_cannot_simply_be_made_anew_elsewhere_is_not_moved() -> None:
    cache = cluster(nodes=8)
    daemon = slice_pod("daemon")
    owner = OwnerReference(api_version="apps/v1", kind="DaemonSet", name="d", uid="d")
    candidates = [
        fixed(slice_pod("selects"), node_selector={"zone": "a"}),
        fixed(slice_pod("affine"), affinity={"nodeAffinity": {}, "podAffinity": {"x": 1}}),
        gang_pod("member"),
        replace(daemon, metadata=replace(daemon.metadata, owner_references=[owner])),
        pod("two", container("a", {names.GPU_CORE: 10}), container("b", {names.GPU_CORE: 10})),
        slice_pod("leaves"),
    ]
    pods = [shown(cache, what, f"n{at}") for at, what in enumerate(candidates)]
    gone: ObjectMeta = replace(pods[5].metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    pods[5] = replace(pods[5], metadata=gone)
    free = shown(cache, slice_pod("free"), "n6")
    assert [one.name for one in Movers(cache, [*pods, free]).placed] == [free.key]
