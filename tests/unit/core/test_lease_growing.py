"""A lease grows as far as its cards have room, in compute and in memory alike, and not one step further."""

import pytest

from egpu.core.leasing.pool import Pool
from egpu.core.leasing.records import LeaseRequest, Report
from egpu.core.placement.ledger import Card
from egpu_base.errors import DoesNotFit


def pool_with_two_leases() -> Pool:
    """One card of 1000 MiB: "grows" has 50 % and 800 MiB of it, another lease 30 % and 100 MiB."""
    pool = Pool("epoch")
    card = Card(uuid="GPU-0", index=0, minor=0, memory_mib=1000)
    report = Report(server="one", address="", host="one", link_mbps=1, instance="1", cards=(card,), leases=())
    pool.report(report, now=0.0)
    for name, core, memory_mib in (("grows", 50, 800), ("other", 30, 100)):
        asked = LeaseRequest(cards=1, core=core, memory_mib=memory_mib)
        pool.grant(asked, lease=name, key="k", holder=name, peer="p", request=name, now=0.0)
    return pool


@pytest.mark.parametrize(("core", "memory_mib"), [(71, None), (None, 901), (71, 901), (71, 100), (1, 901)])
def test_what_one_of_the_two_has_no_room_for_is_refused_and_changes_nothing(
    core: int | None, memory_mib: int | None
) -> None:
    pool = pool_with_two_leases()
    before = pool.leases["grows"]
    with pytest.raises(DoesNotFit, match="has 70 % and 900 MiB for this lease"):
        pool.resize("grows", core=core, memory_mib=memory_mib)
    assert pool.leases["grows"] == before


def test_all_that_is_there_can_be_had() -> None:
    pool = pool_with_two_leases()
    (share,) = pool.resize("grows", core=70, memory_mib=900).parts["one"].wanted
    assert (share.core, share.memory_mib) == (70, 900)
    assert pool.ledger.snapshot()["one", "GPU-0"][:2] == (0, 0)
