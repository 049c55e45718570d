"""When a lease ends: its time, its holder's connection, its server; and what is remembered of it."""

import pytest

from egpu.core.leasing import table as table_module
from egpu.core.leasing.pool import Pool
from egpu_base.errors import DoesNotFit, InvalidInput, NotFound
from support.leases import CARD_MIB, grant, obey, report, running


def pool_of(*servers: str, count: int = 1) -> Pool:
    pool = Pool("epoch")
    for server in servers:
        pool.report(report(server, count), 0.0)
    return pool


def settled(pool: Pool) -> None:
    """As the owner has it after it told everybody."""
    pool.changed.clear()
    pool.touched.clear()


def free(pool: Pool, server: str = "one") -> tuple[int, int]:
    core, memory_mib, _, _ = pool.ledger.snapshot()[server, f"GPU-{server}-0"]
    return core, memory_mib


def test_a_lease_ends_at_its_deadline_and_a_renewal_moves_it() -> None:
    pool = pool_of("one")
    grant(pool, "l", now=1.0)
    pool.tick(30.9)
    assert pool.leases["l"].state == "granted"
    assert pool.renew("l", 30.9) is pool.leases["l"]
    assert pool.leases["l"].deadline == pytest.approx(60.9)
    pool.tick(31.0)
    assert pool.leases["l"].state == "granted"
    settled(pool)
    pool.tick(61.0)
    ending = pool.leases["l"]
    assert (ending.state, ending.reason) == ("ending", "its holder stopped renewing it")
    assert (pool.changed, pool.touched) == ({"one"}, {"l"})
    assert pool.orders("one") == (pool.servers["one"].version, ())


def test_exactly_at_its_deadline_it_ends_and_what_is_ending_keeps_its_reason() -> None:
    pool = pool_of("one")
    grant(pool, "l")
    pool.tick(30.0)
    assert pool.leases["l"].state == "ending"
    settled(pool)
    before = pool.leases["l"]
    pool.end("l", "once more")
    pool.end("unknown", "never there")
    pool.tick(31.0)
    assert pool.leases == {"l": before}
    assert (pool.changed, pool.touched) == (set(), set())
    assert pool.why_ended("l") == "its holder stopped renewing it"


def test_an_ending_lease_is_neither_renewed_nor_resized_nor_let_go() -> None:
    pool = pool_of("one")
    grant(pool, "l")
    pool.end("l", "released")
    before = pool.leases["l"]
    for refused in (lambda: pool.renew("l", 1.0), lambda: pool.resize("l", core=1)):
        with pytest.raises(NotFound, match="there is no lease l: it ended, released"):
            refused()
    with pytest.raises(NotFound) as unknown:
        pool.renew("m", 1.0)
    assert str(unknown.value).endswith("there is no lease m")
    pool.let_go("l", 1.0)
    pool.let_go("m", 1.0)
    assert pool.leases == {"l": before}


def test_a_closed_connection_leaves_a_second_to_come_back_and_never_more_than_there_was() -> None:
    pool = pool_of("one")
    grant(pool, "l")
    pool.let_go("l", 10.0)
    assert pool.leases["l"].deadline == 11.0
    pool.let_go("l", 10.5)
    assert pool.leases["l"].deadline == 11.0
    assert pool.renew("l", 10.9).deadline == 40.9
    pool.let_go("l", 40.5)
    assert pool.leases["l"].deadline == 40.9


def test_what_an_ending_lease_held_is_free_when_its_server_has_read_the_order_and_not_before() -> None:
    pool = pool_of("one")
    grant(pool, "l")
    obey(pool, "one")
    assert pool.leases["l"].state == "active"
    pool.end("l", "released")
    assert free(pool) == (50, CARD_MIB - 400)
    settled(pool)
    obey(pool, "one")
    assert pool.leases == {}
    assert free(pool) == (100, CARD_MIB)
    assert pool.touched == {"l"}
    assert pool.servers["one"].leases == set()
    assert (pool.count("p", "h"), pool.of_request("p", "l")) == (0, None)


def test_a_holders_leases_are_counted_until_they_are_gone() -> None:
    pool = pool_of("one")
    for lease, holder in (("a", "h"), ("b", "h"), ("c", "other")):
        grant(pool, lease, core=10, memory_mib=100, holder=holder)
    assert [pool.count("p", holder) for holder in ("h", "other", "nobody")] == [2, 1, 0]
    pool.end("a", "released")
    assert pool.count("p", "h") == 2
    obey(pool, "one")
    assert [pool.count("p", holder) for holder in ("h", "other")] == [1, 1]


def test_a_request_that_was_asked_again_is_not_forgotten_with_its_first_lease() -> None:
    pool = pool_of("one")
    grant(pool, "a", core=10, memory_mib=100, request="1")
    pool.end("a", "released")
    grant(pool, "b", core=10, memory_mib=100, request="1")
    obey(pool, "one")
    assert pool.leases.keys() == {"b"}
    found = pool.of_request("p", "1")
    assert found is not None
    assert found.id == "b"


def test_why_the_last_leases_ended_is_remembered_and_the_oldest_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "MAX_TOMBSTONES", 2)
    pool = pool_of("one")
    for lease in "abc":
        grant(pool, lease, core=1, memory_mib=1)
        pool.end(lease, f"reason of {lease}")
    assert [pool.why_ended(lease) for lease in "abc"] == ["", "reason of b", "reason of c"]
    obey(pool, "one")
    grant(pool, "b", core=1, memory_mib=1)
    pool.end("b", "again")
    grant(pool, "d", core=1, memory_mib=1)
    pool.end("d", "reason of d")
    assert list(pool.ended.items()) == [("b", "again"), ("d", "reason of d")]


def test_a_lease_of_two_servers_is_gone_with_the_last_of_them() -> None:
    pool = pool_of("one", "two")
    grant(pool, "l", 2)
    for server in ("one", "two"):
        obey(pool, server)
    assert pool.leases["l"].state == "active"
    pool.end("l", "released")
    obey(pool, "one")
    assert pool.leases["l"].servers == ("two",)
    assert (free(pool, "one"), free(pool, "two")) == ((100, CARD_MIB), (50, CARD_MIB - 400))
    assert (pool.servers["one"].leases, pool.servers["two"].leases) == (set(), {"l"})
    assert pool.count("p", "h") == 1
    obey(pool, "two")
    assert pool.leases == {}
    assert free(pool, "two") == (100, CARD_MIB)


def test_a_server_that_stays_away_loses_its_leases_and_is_forgotten() -> None:
    pool = pool_of("one", "two")
    grant(pool, "both", 2, core=10)
    grant(pool, "alone", core=10, memory_mib=100)
    assert pool.leases["alone"].servers == ("one",)
    for server in ("one", "two"):
        obey(pool, server)
    pool.server_away("one", 10.0)
    pool.server_away("one", 20.0)
    pool.server_away("unknown", 10.0)
    for lease in ("both", "alone"):
        pool.renew(lease, 39.0)
    pool.tick(39.9)
    assert {lease.state for lease in pool.leases.values()} == {"active"}
    settled(pool)
    pool.tick(40.0)
    assert pool.servers.keys() == {"two"}
    assert pool.leases.keys() == {"both"}
    both = pool.leases["both"]
    assert (both.servers, both.state, both.reason) == (("two",), "ending", "server one was away for 30 s")
    assert pool.why_ended("alone") == "server one was away for 30 s"
    assert (pool.changed, pool.touched) == ({"two"}, {"both", "alone"})
    assert pool.ledger.row("one") is None or not pool.ledger.cards("one")
    assert {holder.id for holder in pool.ledger.holders()} == {"both@two"}


def test_a_server_that_is_back_in_time_keeps_what_it_runs() -> None:
    pool = pool_of("one")
    grant(pool, "l")
    obey(pool, "one")
    pool.server_away("one", 0.0)
    settled(pool)
    obey(pool, "one", 29.0)
    assert pool.changed == {"one"}, "orders that were on their way are lost"
    pool.renew("l", 29.0)
    pool.tick(31.0)
    assert pool.leases["l"].state == "active"
    assert grant(pool, "m").servers == ("one",)


def test_other_limits_are_ordered_of_every_server_whose_limits_they_change() -> None:
    pool = pool_of("one", "two")
    grant(pool, "l", 2)
    versions = {name: server.version for name, server in pool.servers.items()}
    settled(pool)
    same = pool.resize("l", core=50, memory_mib=400)
    assert pool.resize("l") == same
    assert pool.changed == set()
    for core, memory_mib, found in ((60, None, (60, 400)), (None, 500, (60, 500)), (70, 600, (70, 600))):
        changed = pool.resize("l", core=core, memory_mib=memory_mib)
        assert pool.leases["l"] == changed
        assert {(one.core, one.memory_mib) for part in changed.parts.values() for one in part.wanted} == {found}
        assert (free(pool, "one"), free(pool, "two")) == (((100 - found[0]), CARD_MIB - found[1]),) * 2
    assert pool.changed == {"one", "two"}
    for name, server in pool.servers.items():
        assert server.version == pool.leases["l"].parts[name].ordered == versions[name] + 3


def test_a_deadline_alone_is_ordered_too_by_the_unix_clock() -> None:
    pool = Pool("epoch", unix_at_zero=1000.0)
    pool.report(report("one"), 0.0)
    grant(pool, "l")
    settled(pool)
    assert pool.resize("l", fit_by=5.0).fit_by == 1005.0
    assert pool.changed == {"one"}
    settled(pool)
    pool.resize("l", fit_by=5.0)
    assert pool.changed == set()
    assert pool.resize("l").fit_by is None
    assert pool.changed == {"one"}
    assert Pool("epoch").unix_at_zero == 0.0


@pytest.mark.parametrize(("core", "memory_mib"), [(101, None), (0, None), (None, 0), (None, -1)])
def test_limits_that_no_card_can_have_are_refused(core: int | None, memory_mib: int | None) -> None:
    pool = pool_of("one")
    before = grant(pool, "l")
    with pytest.raises(InvalidInput):
        pool.resize("l", core=core, memory_mib=memory_mib)
    assert pool.leases == {"l": before}


def test_a_card_that_is_not_there_now_has_no_room_for_other_limits() -> None:
    pool = pool_of("one")
    grant(pool, "l")
    obey(pool, "one")
    version, records = pool.orders("one")
    pool.report(report("one", 0, [running(one) for one in records], epoch="epoch", version=version), 1.0)
    with pytest.raises(DoesNotFit, match="card GPU-one-0 of one is away"):
        pool.resize("l", core=40)
    assert pool.leases["l"].parts["one"].wanted[0].core == 50


def test_who_gave_its_memory_back_in_time_is_told_that_the_deadline_is_over_and_who_did_not_is_ended() -> None:
    pool = pool_of("one")
    grant(pool, "l", memory_mib=800)
    obey(pool, "one")
    pool.resize("l", memory_mib=300, fit_by=20.0)
    obey(pool, "one")
    settled(pool)
    before = pool.leases["l"]
    pool.tick(19.9)
    assert (pool.leases["l"], pool.changed) == (before, set())
    pool.tick(20.0)
    kept = pool.leases["l"]
    assert (kept.state, kept.fit_by, pool.changed) == ("active", None, {"one"})
    assert kept.parts["one"].ordered == before.parts["one"].ordered + 1 == pool.servers["one"].version
    settled(pool)
    pool.tick(25.0)
    assert pool.changed == set()
