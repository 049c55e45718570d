"""Leases that share the room of a card: together they have more than it, and the server's own memory has room for
each."""

import dataclasses

import msgspec
import pytest

from egpu.core.leasing.belief import believed
from egpu.core.leasing.pool import Pool
from egpu.core.leasing.records import LeaseRequest, Report, RunningLease, lease_name
from egpu.core.leasing.state import Lease
from egpu_base.errors import DoesNotFit, InvalidInput, NotSupported, Refused
from support.leases import CARD_MIB, obey, report, running

HOST_MIB = 4000


def grant(pool: Pool, key: str, memory_mib: int, resident_percent: int = 0) -> Lease:
    asked = LeaseRequest(
        cards=1, core=10, memory_mib=memory_mib, resident_percent=resident_percent, park_idle_seconds=30
    )
    return pool.grant(asked, lease=lease_name(key), key=key, holder="h", peer="p", request=key, now=0.0)


def said(*leases: RunningLease, parking_mib: int = HOST_MIB, pool: Pool | None = None) -> Report:
    version = 0 if pool is None else pool.orders("alpha")[0]
    epoch = "" if pool is None else pool.epoch
    return dataclasses.replace(
        report("alpha", 1, leases, epoch=epoch, version=version), parking_mib=parking_mib, server="alpha"
    )


def made(parking_mib: int = HOST_MIB) -> Pool:
    pool = Pool("epoch")
    pool.report(said(parking_mib=parking_mib), 0.0)
    return pool


def test_leases_together_have_more_than_the_card() -> None:
    pool = made()
    for key in "abcde":
        (share,) = grant(pool, key, 750, 2).parts["alpha"].wanted
        assert (share.memory_mib, share.resident_mib) == (750, 15)
    (record, *_) = pool.orders("alpha")[1]
    assert record.park_idle_seconds == 30
    with pytest.raises(DoesNotFit, match=r"card 0 has 190 MiB of 1000 MiB free, 200 MiB needed"):
        grant(pool, "large", 200)
    grant(pool, "small", 190)


def test_memory_of_the_server_is_promised_once() -> None:
    pool = made()
    for key in "abcde":
        grant(pool, key, 750, 2)
    with pytest.raises(DoesNotFit, match=r"asks for 300 MiB of the host's memory .*; 250 MiB of 4000 MiB are left"):
        grant(pool, "f", 300, 2)
    grant(pool, "g", 250, 2)


def test_a_server_that_offers_no_memory_gets_none() -> None:
    pool = made(parking_mib=0)
    with pytest.raises(DoesNotFit, match="offers none"):
        grant(pool, "a", 100, 10)
    grant(pool, "b", 100)


def test_its_size_and_its_place_are_fixed() -> None:
    pool = made()
    lease = grant(pool, "a", 750, 2).id
    obey(pool, "alpha")
    with pytest.raises(NotSupported, match="fixes its size"):
        pool.resize(lease, memory_mib=800)
    with pytest.raises(Refused, match="stays on its card"):
        pool.move(lease, token="t", now=0.0)


def test_another_broker_learns_them_all() -> None:
    """It has granted none of these, and believes them although they are more than the card."""
    pool = made()
    for key in "abcde":
        grant(pool, key, 750, 2)
    leases = [running(record) for record in pool.orders("alpha")[1]]
    other = Pool("other")
    found, doubted = believed(said(*leases), other, max_leases=100)
    assert not doubted
    other.report(found, 0.0)
    assert len(other.leases) == 5
    with pytest.raises(DoesNotFit, match="190 MiB of 1000 MiB free"):
        grant(other, "large", 200)
    with pytest.raises(DoesNotFit, match="host's memory"):
        grant(other, "f", 300, 2)


def test_an_invented_lease_shares_no_more_than_the_card_has() -> None:
    pool = made()
    grant(pool, "a", 750, 2)
    (record,) = pool.orders("alpha")[1]
    (share,) = record.cards
    for wrong in ({"memory_mib": CARD_MIB + 1}, {"resident_mib": 760}, {"resident_mib": -1}):
        cards = (msgspec.structs.replace(share, **wrong),)
        invented = running(msgspec.structs.replace(record, cards=cards, key="b", lease=lease_name("b")))
        _, doubted = believed(said(invented), Pool("other"), max_leases=100)
        assert doubted, wrong


def test_requests_that_make_no_sense() -> None:
    for percent in (100, -1):
        with pytest.raises(InvalidInput):
            LeaseRequest(cards=1, core=10, memory_mib=100, resident_percent=percent)
    with pytest.raises(InvalidInput):
        LeaseRequest(cards=1, core=10, memory_mib=100, resident_percent=10, park_idle_seconds=-1.0)
    with pytest.raises(InvalidInput, match="one card"):
        LeaseRequest(cards=2, core=10, memory_mib=100, resident_percent=10)
