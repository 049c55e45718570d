"""Whose lease was ended because it held more memory than it may: they wait for the next one, longer each time."""

import pytest
from msgspec.structs import replace

from egpu.core.backoff import FIRST_SECONDS
from egpu.core.leasing.pool import Pool
from egpu.core.leasing.records import LeaseRecord
from egpu_base.errors import TooSoon
from support.leases import grant, obey, report, running


def pool_of_one() -> Pool:
    pool = Pool("epoch")
    pool.report(report("one"), 0.0)
    return pool


def ended(pool: Pool, record: LeaseRecord, now: float, *, over_limit: bool = True) -> None:
    """The server says that it ended the lease, twice, and then that nothing of it runs."""
    failed = replace(running(record, [0], ready=False, failure="it holds 5000 MiB"), over_limit=over_limit)
    for _ in range(2):
        pool.report(report("one", leases=[failed], epoch=pool.epoch), now)
    obey(pool, "one", now)


def test_a_peer_waits_for_each_overrun_longer_and_nobody_else_does() -> None:
    pool, now = pool_of_one(), 0.0
    for number in range(3):
        lease = grant(pool, f"l{number}", peer="client/ann", now=now)
        obey(pool, "one", now)
        ended(pool, lease.record("one"), now)
        assert not pool.leases
        wait = FIRST_SECONDS * 2**number
        for later, holder in ((0.0, "h"), (wait - 0.5, "another name")):
            with pytest.raises(
                TooSoon, match=f"client/ann exceeded its GPU memory limit .* try again in {wait - later:.0f} s"
            ):
                grant(pool, "again", peer="client/ann", holder=holder, now=now + later)
        grant(pool, "other", peer="client/bob", now=now)
        pool.end("other", "released")
        obey(pool, "one", now)
        now += wait


def test_other_ends_have_no_such_consequence_and_nor_has_a_lease_that_a_server_made_up() -> None:
    pool = pool_of_one()
    lease = grant(pool, "l", peer="client/ann")
    obey(pool, "one")
    ended(pool, lease.record("one"), 0.0, over_limit=False)
    adopted = grant(pool, "m", peer="client/ann").record("one")
    pool = pool_of_one()
    pool.report(report("one", leases=[running(adopted)]), 0.0)
    ended(pool, adopted, 0.0)
    assert grant(pool, "n", peer="client/ann").state == "granted"


def test_the_answer_that_was_lost_is_given_again() -> None:
    pool = pool_of_one()
    first, second = (grant(pool, name, peer="client/ann") for name in "lm")
    obey(pool, "one")
    failed = replace(running(first.record("one"), [0], failure="it holds 5000 MiB"), over_limit=True)
    pool.report(report("one", leases=[failed, running(second.record("one"))], epoch=pool.epoch), 0.0)
    assert grant(pool, "x", peer="client/ann", request="m").id == "m"
