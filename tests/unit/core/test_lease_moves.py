"""Leases that move: the places that are counted, what the servers are told, and what the pool believes."""

import dataclasses

import msgspec
import pytest
from msgspec.structs import replace

from egpu.core.leasing.belief import believed
from egpu.core.leasing.moves import MOVE_SECONDS, ORPHAN_SECONDS
from egpu.core.leasing.pool import MAX_LEASES, Pool
from egpu.core.leasing.records import Departure, LeaseRecord, Look, Report, RunningLease, lease_name
from egpu.core.leasing.targets import on_sick_cards
from egpu_base.errors import DoesNotFit, InvalidInput, NotFound, Refused, Unavailable
from support.leases import grant, report, running

KEY = "the lease's key"
LEASE = lease_name(KEY)


def said(pool: Pool, server: str, *leases: RunningLease, count: int = 2, cordoned: bool = False) -> Report:
    """What the server says once it has read its orders."""
    version = pool.servers[server].version if server in pool.servers else 0
    one = report(server, count, leases, epoch=pool.epoch, version=version)
    return dataclasses.replace(one, movable=True, cordoned=cordoned)


def pool_of(*servers: str) -> Pool:
    pool = Pool("epoch")
    for server in servers:
        pool.report(said(pool, server), 0.0)
    return pool


def held(pool: Pool) -> list[str]:
    return sorted(holder.id.removeprefix(LEASE) for holder in pool.ledger.holders())


def leased(pool: Pool) -> LeaseRecord:
    """A lease whose executor runs on its server."""
    made = grant(pool, LEASE, key=KEY)
    (server,) = made.servers
    (record,) = pool.orders(server)[1]
    pool.report(said(pool, server, running(record)), 0.0)
    return record


def moving(pool: Pool) -> tuple[LeaseRecord, LeaseRecord]:
    """A lease that moves from one to two, whose sessions are restored there."""
    first = leased(pool)
    pool.move(LEASE, token="t", now=0.0, server="two")
    (second,) = pool.orders("two")[1]
    pool.report(said(pool, "two", arriving(second)), 0.0)
    return first, second


def arriving(record: LeaseRecord) -> RunningLease:
    return replace(running(record), arriving=True)


def departed(record: LeaseRecord, state: str, *, place: int = 1, why: str = "") -> RunningLease:
    departure = msgspec.convert({"place": place, "state": state, "why": why, "bytes": 7}, Departure)
    return replace(running(record), departure=departure)


def test_both_places_count_until_one_is_final_and_empty() -> None:
    pool = pool_of("one", "two")
    first, second = moving(pool)
    assert (second.place, second.executor) == (1, f"{LEASE}-1")
    assert held(pool) == ["@one", "@two#1"]
    (order,) = pool.moves("one")
    assert pool.moves("two") == (order,)
    assert (order.source, order.target, order.token, order.place) == ("one", "two", "t", 1)
    pool.report(said(pool, "one", departed(first, "left")), 1.0)
    assert pool.leases[LEASE].places == (("two", 1),)
    assert held(pool) == ["@one", "@two#1"]
    assert pool.moves("two") == ()
    assert pool.orders("one")[1] == (first,)  # its report that it has left must not be lost yet
    pool.report(said(pool, "two", running(second)), 1.0)
    assert pool.orders("one")[1] == ()
    pool.report(said(pool, "one"), 1.0)
    assert held(pool) == ["@two#1"]
    found = pool.leases[LEASE]
    assert (found.second, found.state) == (None, "active")
    assert found.moved is not None
    assert (found.moved.place, found.moved.why, found.moved.bytes) == (1, "", 7)


def test_a_refused_move_leaves_the_lease_where_it_is() -> None:
    pool = pool_of("one", "two")
    first, second = moving(pool)
    pool.report(said(pool, "one", departed(first, "refused", why="a graph")), 1.0)
    assert pool.orders("two")[1] == ()
    pool.report(said(pool, "two", arriving(second)), 1.0)
    assert held(pool) == ["@one", "@two#1"]
    pool.report(said(pool, "two"), 1.0)
    assert held(pool) == ["@one"]
    moved = pool.leases[LEASE].moved
    assert moved is not None
    assert (moved.why, moved.kind) == ("a graph", "failed")
    pool.move(LEASE, token="t", now=2.0, server="two")
    assert pool.orders("two")[1][0].place == 2


def test_a_cancelled_target_stays_until_its_source_cannot_leave_any_more() -> None:
    pool = pool_of("one", "two")
    first, second = moving(pool)
    before = said(pool, "one", running(first))
    pool.server_away("two", 1.0)
    assert pool.moves("one") == ()
    pool.report(before, 1.0)  # written before it read that
    pool.report(said(pool, "two", arriving(second)), 1.0)
    assert pool.orders("two")[1] == (second,)
    assert pool.moves("two")[0].token == ""  # nothing new may arrive
    pool.report(said(pool, "one", departed(first, "unsure", place=0)), 1.0)
    assert pool.orders("two")[1] == (second,)
    pool.report(said(pool, "one", running(first)), 1.0)
    assert pool.orders("two")[1] == ()


def test_a_lease_that_left_before_it_read_that_it_shall_not_has_moved() -> None:
    pool = pool_of("one", "two")
    first, second = moving(pool)
    pool.renew(LEASE, MOVE_SECONDS)
    pool.tick(MOVE_SECONDS)
    assert pool.moves("one") == ()
    pool.report(said(pool, "one", departed(first, "left")), 1.0)
    assert pool.leases[LEASE].places == (("two", 1),)
    pool.report(said(pool, "two", running(second)), 1.0)
    assert pool.leases[LEASE].state == "active"


@pytest.mark.parametrize("order", ["one two", "two one"])
def test_a_new_pool_learns_that_a_lease_has_left(order: str) -> None:
    pool = pool_of("one", "two")
    first, second = moving(pool)
    reports = {"one": departed(first, "left"), "two": arriving(second)}
    pool = Pool("later")
    for server in order.split():
        pool.report(said(pool, server, reports[server]), 0.0)
    assert pool.leases[LEASE].places == (("two", 1),)
    pool.report(said(pool, "two", running(second)), 0.0)
    pool.report(said(pool, "one"), 0.0)
    assert held(pool) == ["@two#1"]


@pytest.mark.parametrize("order", ["one two", "two one"])
def test_a_new_pool_cancels_a_move_that_has_not_left(order: str) -> None:
    pool = pool_of("one", "two")
    first, second = moving(pool)
    reports = {"one": departed(first, "going"), "two": arriving(second)}
    pool = Pool("later")
    for server in order.split():
        pool.report(said(pool, server, reports[server]), 0.0)
    assert held(pool) == ["@one", "@two#1"]
    assert pool.moves("one") == ()
    pool.report(said(pool, "one", running(first)), 0.0)
    pool.report(said(pool, "two"), 0.0)
    assert held(pool) == ["@one"]


def test_a_place_without_its_other_ends_with_its_lease() -> None:
    pool = pool_of("one", "two")
    _, second = moving(pool)
    pool = Pool("later")
    pool.report(said(pool, "two", arriving(second)), 0.0)
    for now in (1.0, ORPHAN_SECONDS):
        pool.renew(LEASE, now)
        pool.tick(now)
    assert pool.leases[LEASE].state == "ending"
    assert pool.orders("two")[1] == ()


def test_a_server_cannot_move_the_lease_of_another() -> None:
    pool = pool_of("one", "two", "three")
    first, second = moving(pool)
    forged = [
        departed(replace(first, cards=pool.orders("two")[1][0].cards), "left"),
        arriving(replace(second, place=5)),
        running(replace(second, place=7)),
        running(replace(second, key="another key")),
    ]
    for one in forged:
        found, doubted = believed(said(pool, "three", one), pool, max_leases=MAX_LEASES)
        assert (found.leases, doubted) == ((), (LEASE,))
    found, _ = believed(said(pool, "two", departed(second, "left", place=9)), pool, max_leases=MAX_LEASES)
    pool.report(found, 1.0)
    assert pool.leases[LEASE].places == (("one", 0),)


def test_a_move_needs_another_card_of_the_same_model_on_a_server_that_moves_leases() -> None:
    pool = pool_of("one", "two")
    leased(pool)
    with pytest.raises(NotFound, match="no server nowhere"):
        pool.move(LEASE, token="t", now=0.0, server="nowhere")
    with pytest.raises(NotFound, match="has no card 9"):
        pool.move(LEASE, token="t", now=0.0, server="two", card="9")
    with pytest.raises(InvalidInput, match="--to"):
        pool.move(LEASE, token="t", now=0.0, card="0")
    with pytest.raises(NotFound, match="no cards on two"):
        pool.move(LEASE, token="t", now=0.0, source="two")
    pool.report(report("old", 2), 0.0)
    with pytest.raises(Refused, match="too old"):
        pool.move(LEASE, token="t", now=0.0, server="old")
    for number in range(5):
        grant(pool, f"full-{number}", core=90, memory_mib=500)
    with pytest.raises(DoesNotFit, match="no other place"):
        pool.move(LEASE, token="t", now=0.0)


def test_a_lease_makes_one_move_at_a_time_and_is_not_resized_meanwhile() -> None:
    pool = pool_of("one", "two")
    moving(pool)
    with pytest.raises(Unavailable, match="is moving"):
        pool.move(LEASE, token="t", now=0.0)
    with pytest.raises(Unavailable, match="is moving"):
        pool.resize(LEASE, core=10)


def test_a_drained_server_gets_nothing_new_until_it_is_undone() -> None:
    pool = pool_of("one", "two")
    leased(pool)
    pool.cordon("two", cordoned=True)
    assert pool.servers["two"].to_cordon is True
    with pytest.raises(Refused, match="drained"):
        pool.move(LEASE, token="t", now=0.0, server="two")
    pool.report(said(pool, "two", cordoned=True), 0.0)
    assert pool.servers["two"].to_cordon is None
    with pytest.raises(DoesNotFit):
        grant(pool, "many", 3, core=10, memory_mib=10)
    pool.cordon("two", cordoned=False)
    assert pool.move(LEASE, token="t", now=0.0, server="two").second is not None


def test_leases_on_cards_that_do_not_work_are_named_once_they_can_move() -> None:
    pool = pool_of("one", "two")
    record = leased(pool)
    assert list(on_sick_cards(pool)) == []
    sick = said(pool, "one", running(record))
    cards = tuple(dataclasses.replace(card, healthy=False) for card in sick.cards)
    pool.report(dataclasses.replace(sick, cards=cards), 0.0)
    assert [(lease.id, server) for lease, server in on_sick_cards(pool)] == [(LEASE, "one")]
    pool.move(LEASE, token="t", now=0.0)
    assert list(on_sick_cards(pool)) == []


def test_a_question_is_asked_until_it_is_answered() -> None:
    pool = pool_of("one", "two")
    record = leased(pool)
    _, server = pool.ask_about(LEASE)
    assert server == "one"
    assert [(one.lease, one.number) for one in pool.looks("one")] == [(LEASE, 1)]
    pool.report(said(pool, "one", replace(running(record), look=Look(number=1, prevents=("x",)))), 0.0)
    assert pool.looks("one") == ()
