"""What a lease takes of its cards, when its limits are in force, and in which order its parts are."""

import pytest

from egpu.api.allocation import CardShare
from egpu.core.leasing.records import LeaseRecord, Report
from egpu.core.leasing.state import Lease, Part, Server
from support.leases import cards, running


def share(index: int, core: int, memory_mib: int) -> CardShare:
    return CardShare(uuid=f"GPU-{index}", index=index, minor=index, core=core, memory_mib=memory_mib)


def record(*shares: CardShare, part: int = 0, fit_by: float | None = None) -> LeaseRecord:
    return LeaseRecord(
        lease="l", holder="h", peer="p", request="r", key="k", part=part, parts=2, cards=shares, fit_by=fit_by
    )


def lease(fit_by: float | None = None, **parts: Part) -> Lease:
    return Lease(
        id="l", holder="h", peer="p", request="r", key="k", state="active", parts=parts, expected_parts=2,
        deadline=0.0, since=0.0,
        fit_by=fit_by,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "runs", "occupied", "held"),
    [
        ((50, 400), None, None, (50, 400)),
        ((50, 400), (20, 300), 350, (50, 400)),
        ((50, 400), (70, 300), 300, (70, 400)),
        ((50, 400), (50, 500), 450, (50, 500)),
        ((50, 400), (50, 400), 600, (50, 600)),
        (None, (30, 200), 250, (30, 250)),
        (None, (30, 200), 0, (30, 200)),
    ],
)
def test_a_card_is_held_by_the_larger_of_what_is_wanted_and_what_runs(
    wanted: tuple[int, int] | None, runs: tuple[int, int] | None, occupied: int | None, held: tuple[int, int]
) -> None:
    part = Part((share(0, *wanted),) if wanted else (), ordered=1)
    if runs is not None:
        assert occupied is not None
        part = Part(part.wanted, 1, running(record(share(0, *runs)), [occupied]))
    assert part.held == (share(0, *held),)


def test_nothing_wanted_and_nothing_running_holds_nothing_and_of_several_cards_each_counts_for_itself() -> None:
    assert Part((), ordered=1).held == ()
    runs = running(record(share(1, 90, 100), share(2, 10, 100)), [100, 700])
    part = Part((share(0, 5, 50), share(1, 20, 300)), 1, runs)
    assert part.held == (share(0, 5, 50), share(1, 90, 300), share(2, 10, 700))


def test_over_its_limit_is_who_uses_more_than_it_was_shrunk_to_on_any_card() -> None:
    two = (share(0, 50, 400), share(1, 50, 400))
    for occupied, over in (((400, 400), False), ((401, 400), True), ((400, 401), True), ((0, 0), False)):
        assert lease(one=Part(two, 1, running(record(*two), occupied))).over_limit is over
    used = Part(two[:1], 1, running(record(two[0]), [500]))
    assert not lease(one=Part(two, 1)).over_limit, "nothing runs"
    assert not lease(one=Part((), 1, used.running)).over_limit, "it is to end: that is no matter of limits"
    assert lease(one=Part(two, 1), two=used).over_limit


def test_limits_are_in_force_when_every_server_has_them_and_their_deadline() -> None:
    new, old = share(0, 50, 400), share(0, 50, 800)
    has = Part((new,), 1, running(record(new)))
    for other, shrunk in ((has, True), (Part((new,), 1), False), (Part((new,), 1, running(record(old))), False)):
        found = lease(one=has, two=other)
        assert (found.shrunk, found.in_force) == (shrunk, shrunk)
    late = Part((new,), 1, running(record(new, fit_by=9.0)))
    assert lease(9.0, one=late).in_force
    assert lease(9.0, one=late, two=has).shrunk
    assert not lease(9.0, one=late, two=has).in_force
    assert not lease(None, one=late).in_force


def test_parts_are_in_the_order_of_the_numbers_that_their_servers_say() -> None:
    found = lease()
    for server, number in (("c", 2), ("a", 0), ("b", 1)):
        found = found.with_part(server, Part((), 0, running(record(part=number))))
    assert found.servers == ("a", "b", "c")
    assert [found.record(server).part for server in "abc"] == [0, 1, 2]


def test_parts_of_which_nothing_is_said_stay_where_they_were() -> None:
    found = lease(x=Part((), 0), b=Part((), 0), a=Part((), 0))
    changed = found.with_part("b", Part((share(0, 1, 1),), 5))
    assert changed.servers == ("x", "b", "a")
    assert changed.parts["b"] == Part((share(0, 1, 1),), 5)
    assert found.parts["b"] == Part((), 0)
    assert [changed.record(server).part for server in ("x", "b", "a")] == [0, 1, 2]
    said = changed.with_part("a", Part((), 0, running(record(part=1))))
    assert said.servers == ("x", "b", "a"), "of two with one number the one that was first stays first"
    assert said.with_part("b", Part((), 0, running(record(part=2)))).servers == ("x", "a", "b")


def test_an_order_says_all_that_a_pool_that_starts_anew_needs() -> None:
    found = lease(7.0, one=Part((share(0, 1, 2),), 3), two=Part((share(1, 3, 4),), 3, running(record(part=5))))
    assert found.record("one") == record(share(0, 1, 2), part=0, fit_by=7.0)
    assert found.record("two") == record(share(1, 3, 4), part=5, fit_by=7.0)


def test_a_server_is_what_it_last_said() -> None:
    server = Server("one", "old", "old", 1, "1", (), away_since=3.0, version=4)
    server.leases.add("l")
    server.says(
        Report(
            server="one", address="10.0.0.1:1", host="h", link_mbps=25, instance="2", cards=cards("one", 1), leases=(),
            directory="/run/x", confinement="none", version=9,
        )
    )  # fmt: skip
    assert server == Server(
        "one", "10.0.0.1:1", "h", 25, "2", cards("one", 1), directory="/run/x", confinement="none", away_since=None,
        version=4, leases={"l"},
    )  # fmt: skip
