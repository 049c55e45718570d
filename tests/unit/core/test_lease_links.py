"""Links in a pool's orders: when servers are told, and whose word counts."""

from dataclasses import replace

import pytest

from egpu.core.leasing import reports
from egpu.core.leasing.links import LinkRecord
from egpu.core.leasing.pool import Pool
from egpu_base.errors import Refused
from support.leases import grant, obey, report


def two(collectives: bool = True) -> Pool:
    pool = Pool("e")
    for name in ("one", "two"):
        pool.report(replace(report(name), address=f"{name}:1", collectives=collectives), 0.0)
    return pool


def linked(pool: Pool, server: str) -> list[str]:
    return [f"{record.caller} {record.server} {record.address}" for record in pool.links(server)]


def relinked(pool: Pool) -> set[str]:
    """Who has to be told."""
    pool.changed.clear()
    pool.relink()
    return set(pool.changed)


def test_servers_are_told_when_a_caller_has_leases_on_two_and_when_no_more() -> None:
    pool = two()
    first, second = (grant(pool, lease, core=60) for lease in ("l1", "l2"))
    assert {*first.servers, *second.servers} == {"one", "two"}
    assert relinked(pool) == {"one", "two"}
    assert (linked(pool, "one"), linked(pool, "two")) == (["p two two:1"], ["p one one:1"])
    assert relinked(pool) == set()
    pool.end("l2", "released")
    assert relinked(pool) == {"one", "two"}
    assert linked(pool, "one") == linked(pool, "two") == []


def test_one_lease_that_spans_two_servers_is_linked() -> None:
    pool = two()
    grant(pool, "l1", 2)
    pool.relink()
    assert linked(pool, "one") == ["p two two:1"]


def test_callers_are_not_linked_with_each_other_nor_servers_that_allow_no_collectives() -> None:
    pool = two()
    grant(pool, "l1", core=60, peer="ann")
    grant(pool, "l2", core=60, peer="bob")
    assert relinked(pool) == set()
    pool = two(collectives=False)
    grant(pool, "l1", 2)
    assert relinked(pool) == set()


def test_after_a_restart_only_who_took_a_lease_can_speak_for_it() -> None:
    before, pool = two(), two()
    grant(before, "l1", 2)
    for name in ("one", "two"):
        obey(before, name)
        running = [part.running for part in [before.leases["l1"].parts[name]] if part.running is not None]
        pool.report(replace(report(name, leases=running), collectives=True), 0.0)
    assert relinked(pool) == set()
    pool.attach("l1", "admin/op", 0.0)
    assert relinked(pool) == set()
    pool.attach("l1", "p", 0.0)
    assert relinked(pool) == {"one", "two"}
    assert pool.links("one") == (LinkRecord(caller="p", server="two", address=""),)


def test_a_server_whose_networks_would_have_anothers_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "network_address", lambda _: 7)
    pool = Pool("e")
    for _ in range(2):
        pool.report(replace(report("one"), collectives=True), 0.0)
    pool.report(report("two"), 0.0)
    with pytest.raises(Refused, match="networks of two and one would have the same address"):
        pool.report(replace(report("two"), collectives=True), 0.0)
