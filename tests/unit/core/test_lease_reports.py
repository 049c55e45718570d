"""What a server's report changes: what runs, what is gone, what the pool did not know, and who is told."""

import pytest

from egpu.api.allocation import CardShare
from egpu.core.leasing import reports as reports_module
from egpu.core.leasing.pool import Pool
from egpu.core.leasing.records import LeaseRecord
from egpu.core.leasing.state import Lease, Part
from egpu_base.errors import DoesNotFit, Refused, Unavailable
from support.leases import CARD_MIB, cards, grant, obey, report, running


def record(
    lease: str = "l", *, server: str = "one", part: int = 0, parts: int = 1, fit_by: float | None = None
) -> LeaseRecord:
    share = CardShare(uuid=f"GPU-{server}-0", index=0, minor=0, core=50, memory_mib=400)
    return LeaseRecord(
        lease=lease, holder="h", peer="p", request="r", key="k", part=part, parts=parts, cards=(share,), fit_by=fit_by
    )


def settled(pool: Pool) -> None:
    pool.changed.clear()
    pool.touched.clear()


def free(pool: Pool, server: str = "one") -> tuple[int, int]:
    core, memory_mib, _, _ = pool.ledger.snapshot()[server, f"GPU-{server}-0"]
    return core, memory_mib


def test_a_new_server_is_taken_in_as_it_says_and_told_what_to_run() -> None:
    pool = Pool("epoch")
    pool.report(report("one", 2, host="h", link_mbps=25, instance="7"), 0.0)
    server = pool.servers["one"]
    assert (server.name, server.host, server.link_mbps, server.instance) == ("one", "h", 25, "7")
    assert (server.cards, server.version, server.away_since) == (cards("one", 2), 0, None)
    assert pool.ledger.cards("one") == cards("one", 2)
    assert pool.changed == {"one"}
    assert pool.orders("one") == (0, ())


def test_the_pool_has_so_many_servers_and_those_that_it_knows_may_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports_module, "MAX_SERVERS", 2)
    pool = Pool("epoch")
    for server in ("a", "b", "a"):
        pool.report(report(server), 0.0)
    with pytest.raises(Refused, match="the pool has 2 servers"):
        pool.report(report("c"), 0.0)
    assert pool.servers.keys() == {"a", "b"}
    assert pool.ledger.row("c") is None


def test_a_server_is_told_anew_when_it_was_away_or_started_again_and_not_otherwise() -> None:
    pool = Pool("epoch")
    pool.report(report("one"), 0.0)
    settled(pool)
    pool.report(report("one"), 1.0)
    assert pool.changed == set()
    pool.report(report("one", instance="2"), 2.0)
    assert pool.changed == {"one"}
    settled(pool)
    pool.server_away("one", 3.0)
    pool.report(report("one", instance="2"), 4.0)
    assert pool.changed == {"one"}
    settled(pool)
    pool.report(report("one", instance="2"), 5.0)
    assert pool.changed == set()


def test_a_lease_is_active_when_every_executor_of_it_is_ready() -> None:
    pool = Pool("epoch")
    for server in ("one", "two"):
        pool.report(report(server), 0.0)
    grant(pool, "l", 2)
    states: list[str] = []
    for server, ready in (("one", True), ("two", False), ("two", True), ("two", False)):
        settled(pool)
        obey(pool, server, ready=ready)
        states.append(pool.leases["l"].state)
        assert pool.touched == {"l"}
        assert pool.changed == set()
    assert states == ["granted", "granted", "active", "active"]


def test_a_report_that_says_nothing_new_changes_nothing() -> None:
    pool = Pool("epoch")
    pool.report(report("one"), 0.0)
    grant(pool, "l")
    obey(pool, "one")
    before = pool.leases["l"]
    settled(pool)
    obey(pool, "one")
    assert pool.leases["l"] is before
    assert (pool.touched, pool.changed) == (set(), set())


def test_an_unknown_lease_is_adopted_as_its_server_has_it_and_lives_for_its_time() -> None:
    pool = Pool("epoch")
    one = running(record(fit_by=9.0), [600])
    pool.report(report("one", leases=[one]), 5.0)
    assert pool.leases["l"] == Lease(
        id="l", holder="h", peer="p", request="r", key="k", state="active",
        parts={"one": Part(one.record.cards, 1, one)}, expected_parts=1, deadline=35.0, since=5.0,
        fit_by=9.0, is_adopted=True, is_learned=True,
    )  # fmt: skip
    assert free(pool) == (50, CARD_MIB - 600)
    assert (pool.count("p", "h"), pool.of_request("p", "r")) == (1, pool.leases["l"])
    assert pool.changed == {"one"}
    assert pool.touched == {"l"}
    assert pool.orders("one") == (1, (one.record,))


def test_an_adopted_lease_waits_for_its_other_servers_and_for_its_executors() -> None:
    pool = Pool("epoch")
    pool.report(report("one", leases=[running(record(part=1, parts=2))]), 5.0)
    assert pool.leases["l"].state == "granted"
    pool.report(report("two", leases=[running(record(server="two", part=0, parts=2), ready=False)]), 6.0)
    assert (pool.leases["l"].state, pool.leases["l"].servers, pool.leases["l"].deadline) == (
        "granted",
        ("two", "one"),
        35.0,
    )
    pool.report(report("two", leases=[running(record(server="two", part=0, parts=2))]), 7.0)
    assert pool.leases["l"].state == "active"


def test_a_lease_that_the_broker_did_not_order_everywhere_before_its_restart_is_granted_anew() -> None:
    """The server "two" was away when the lease was granted, and the broker was killed before it was back."""
    pool = Pool("epoch")
    pool.report(report("one", leases=[running(record(parts=2))]), 5.0)
    pool.report(report("two"), 6.0)
    made = grant(pool, "new", 2, request="r", now=7.0)
    assert (made.id, made.state, sorted(made.parts)) == ("new", "granted", ["one", "two"])
    assert pool.why_ended("l") == "the broker was restarted before all its servers had their orders"
    for server in ("one", "two"):
        obey(pool, server, 8.0)
    assert (pool.leases.keys(), pool.leases["new"].state) == ({"new"}, "active")
    assert pool.of_request("p", "r") == pool.leases["new"]


def test_a_request_is_asked_again_until_its_earlier_lease_has_left_room() -> None:
    pool = Pool("epoch")
    pool.report(report("one", leases=[running(record(parts=2))]), 5.0)
    pool.report(report("two"), 6.0)
    with pytest.raises(Unavailable, match="the earlier lease of this request is ending"):
        grant(pool, "new", 2, core=60, request="r", now=7.0)
    with pytest.raises(DoesNotFit):
        grant(pool, "other", 2, core=60, request="another", now=7.0)
    obey(pool, "one", 8.0)
    assert grant(pool, "new", 2, core=60, request="r", now=9.0).id == "new"


@pytest.mark.parametrize(
    ("first", "second", "found"), [(None, 5.0, 5.0), (5.0, None, 5.0), (7.0, 5.0, 5.0), (5.0, 7.0, 5.0), (None,) * 3]
)
def test_the_sooner_of_the_deadlines_that_two_servers_keep_counts(
    first: float | None, second: float | None, found: float | None
) -> None:
    pool = Pool("epoch")
    for part, (server, fit_by) in enumerate((("one", first), ("two", second))):
        pool.report(report(server, leases=[running(record(server=server, part=part, parts=2, fit_by=fit_by))]), 0.0)
    assert pool.leases["l"].fit_by == found


def test_what_ended_while_its_server_was_away_is_not_adopted_but_ended() -> None:
    pool = Pool("epoch")
    pool.report(report("one", leases=[running(record())]), 0.0)
    pool.server_away("one", 0.0)
    for now in (30.0, 31.0):
        pool.tick(now)
    assert pool.leases == {}
    settled(pool)
    pool.report(report("one", leases=[running(record())]), 40.0)
    found = pool.leases["l"]
    assert (found.state, found.reason, found.fit_by) == ("ending", "its holder stopped renewing it", None)
    assert found.parts["one"].wanted == ()
    assert free(pool) == (50, CARD_MIB - 400), "until it has read that"
    assert pool.changed == {"one"}
    assert pool.orders("one")[1] == ()
    obey(pool, "one", 41.0)
    assert pool.leases == {}
    assert free(pool) == (100, CARD_MIB)


def test_an_executor_that_failed_ends_its_lease_with_its_reason() -> None:
    pool = Pool("epoch")
    pool.report(report("one"), 0.0)
    grant(pool, "l")
    version, (ordered,) = pool.orders("one")
    settled(pool)
    failed = running(ordered, ready=False, failure="no driver")
    pool.report(report("one", leases=[failed], epoch="epoch", version=version), 0.0)
    assert (pool.leases["l"].state, pool.leases["l"].reason) == ("ending", "no driver")
    assert (pool.changed, pool.touched) == ({"one"}, {"l"})
    obey(pool, "one")
    assert pool.leases == {}


def test_that_something_is_gone_is_believed_of_who_had_read_the_order_of_this_pool_for_it() -> None:
    pool = Pool("epoch")
    pool.report(report("one"), 0.0)
    grant(pool, "l")
    version = pool.servers["one"].version
    for epoch, read in (("epoch", version - 1), ("other", version), ("", version + 9)):
        pool.report(report("one", epoch=epoch, version=read), 0.0)
        assert pool.leases["l"].state == "granted"
    pool.report(report("one", epoch="epoch", version=version), 0.0)
    assert (pool.leases["l"].state, pool.leases["l"].reason) == ("ending", "its executor on one is gone")
    ordered = pool.servers["one"].version
    assert ordered == version + 1
    pool.report(report("one", epoch="epoch", version=version), 0.0)
    assert pool.leases.keys() == {"l"}, "it may have been starting it when it wrote that"
    pool.report(report("one", epoch="epoch", version=ordered), 0.0)
    assert pool.leases == {}


def test_a_part_that_its_server_adopted_late_holds_and_is_ended_with_its_lease() -> None:
    pool = Pool("epoch")
    pool.report(report("one", leases=[running(record(parts=2))]), 0.0)
    pool.end("l", "released")
    settled(pool)
    late = running(record(server="two", part=1, parts=2, fit_by=3.0))
    pool.report(report("two", leases=[late]), 0.0)
    part = pool.leases["l"].parts["two"]
    assert part == Part((), 1, late)
    assert pool.leases["l"].fit_by is None
    assert free(pool, "two") == (50, CARD_MIB - 400)
    assert (pool.changed, pool.touched) == ({"two"}, {"l"})
    assert pool.orders("two") == (1, ())


def test_orders_come_by_the_names_of_leases_and_leave_out_what_shall_end() -> None:
    pool = Pool("epoch")
    pool.report(report("one"), 0.0)
    for lease in ("c", "a", "b"):
        grant(pool, lease, core=10, memory_mib=100)
    pool.end("b", "released")
    version, records = pool.orders("one")
    assert version == pool.servers["one"].version == 4
    assert [one.lease for one in records] == ["a", "c"]
    assert records[0] == pool.leases["a"].record("one")
