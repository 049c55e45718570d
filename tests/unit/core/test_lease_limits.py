"""A lease that was shrunk: how long it may hold more than its new limit."""

from msgspec.structs import replace

from egpu.core.leasing.pool import Pool
from egpu.core.leasing.records import LeaseRequest, Report, RunningLease
from egpu.core.leasing.state import Lease
from egpu.core.placement.ledger import Card

CARD = Card(uuid="GPU-0", index=0, minor=0, memory_mib=1000)


class LeasedPool:
    """A pool, one server that does as it is told, and a program that uses `used_mib`. The Unix time is `now` + 1000."""

    def __init__(self) -> None:
        self.pool = Pool("epoch", unix_at_zero=1000.0)
        self.now = 0.0
        self.used_mib = 0
        self.read = 0
        self.running: RunningLease | None = None
        self.report()
        self.pool.grant(
            LeaseRequest(cards=1, core=50, memory_mib=800),
            lease="l",
            key="k",
            holder="pod:a",
            peer="p",
            request="1",
            now=0.0,
        )
        self.obey()

    def obey(self) -> None:
        """The server reads its orders, and reports."""
        self.read, records = self.pool.orders("one")
        self.running = None
        for record in records:
            occupied = max(record.cards[0].memory_mib, self.used_mib)
            self.running = RunningLease(record=record, occupied_mib=(occupied,), ready=True)
        self.report()

    def report(self) -> None:
        if self.running is not None:
            limit = self.running.record.cards[0].memory_mib
            self.running = replace(self.running, occupied_mib=(max(limit, self.used_mib),))
        leases = (self.running,) if self.running is not None else ()
        said = Report(
            server="one", address="", host="one", link_mbps=1, instance="1", cards=(CARD,), leases=leases,
            epoch=self.pool.epoch, version=self.read,
        )  # fmt: skip
        self.pool.report(said, self.now)

    def start_again(self) -> None:
        """Another broker, on a machine that was started just now: it knows what the server keeps, and the time."""
        unix = self.pool.unix_at_zero + self.now
        self.pool, self.now, self.read = Pool("next", unix_at_zero=unix), 0.0, 0
        self.report()

    def wait(self, seconds: float) -> Lease:
        self.now += seconds
        self.pool.renew("l", self.now)
        self.pool.tick(self.now)
        return self.pool.leases["l"]

    def shrink(self, within: float | None) -> None:
        self.pool.resize("l", memory_mib=300, fit_by=None if within is None else self.now + within)


def test_a_program_over_its_new_limit_is_ended_at_the_deadline_and_not_before() -> None:
    leased = LeasedPool()
    leased.used_mib = 700
    leased.shrink(within=60)
    leased.obey()
    lease = leased.wait(59)
    assert (lease.state, lease.over_limit) == ("active", True)
    lease = leased.wait(1)
    assert lease.state == "ending"
    assert lease.reason.startswith("over_limit: ")
    leased.obey()
    assert leased.pool.leases == {}
    assert leased.pool.why_ended("l").startswith("over_limit: ")
    assert leased.pool.ledger.snapshot()[("one", "GPU-0")][:2] == (100, 1000)


def test_a_program_that_gave_it_back_in_time_stays_whatever_it_uses_later() -> None:
    leased = LeasedPool()
    leased.used_mib = 700
    leased.shrink(within=60)
    leased.obey()
    leased.wait(30)
    leased.used_mib = 300
    leased.report()
    assert leased.wait(31).fit_by is None
    assert leased.wait(100).state == "active"


def test_without_a_deadline_nobody_is_ended_and_another_resize_sets_it_anew() -> None:
    leased = LeasedPool()
    leased.used_mib = 700
    leased.shrink(within=None)
    leased.obey()
    assert leased.wait(10_000).state == "active"
    leased.shrink(within=60)
    leased.pool.resize("l", memory_mib=700)
    leased.obey()
    assert leased.wait(10_000).state == "active"


def test_a_server_that_has_not_read_the_order_is_waited_for() -> None:
    leased = LeasedPool()
    leased.used_mib = 300
    leased.shrink(within=60)
    assert leased.wait(70).state == "active", "the old limit is in force: that is no fault of the program"
    leased.obey()
    assert leased.wait(1).state == "active"


def test_a_deadline_that_passed_before_its_server_read_of_it_holds_as_soon_as_it_has() -> None:
    leased = LeasedPool()
    leased.used_mib = 700
    leased.shrink(within=60)
    assert leased.wait(70).fit_by == 1060.0
    leased.obey()
    assert leased.wait(1).state == "ending"


def test_a_deadline_is_kept_over_a_restart_of_the_broker() -> None:
    leased = LeasedPool()
    leased.used_mib = 700
    leased.shrink(within=60)
    leased.obey()
    leased.wait(20)
    leased.start_again()
    lease = leased.wait(39)
    assert (lease.state, lease.over_limit) == ("active", True)
    lease = leased.wait(1)
    assert (lease.state, lease.reason.partition(":")[0]) == ("ending", "over_limit")


def test_a_deadline_that_passed_while_no_broker_ran_ends_the_lease_and_one_that_was_met_does_not() -> None:
    for used_mib, state in ((700, "ending"), (300, "active")):
        leased = LeasedPool()
        leased.used_mib = 700
        leased.shrink(within=60)
        leased.obey()
        leased.used_mib = used_mib
        leased.now += 61
        leased.start_again()
        assert leased.wait(0.1).state == state


def test_a_deadline_that_was_met_or_taken_back_is_not_kept() -> None:
    leased = LeasedPool()
    leased.used_mib = 700
    leased.shrink(within=60)
    leased.obey()
    assert leased.pool.leases["l"].in_force
    leased.used_mib = 300
    leased.report()
    assert not leased.wait(61).in_force, "its server is still to forget the deadline"
    leased.obey()
    leased.start_again()
    assert leased.pool.leases["l"].fit_by is None

    leased.shrink(within=60)
    leased.obey()
    leased.shrink(within=None)
    assert not leased.pool.leases["l"].in_force
    leased.obey()
    assert leased.pool.leases["l"].in_force
    leased.start_again()
    assert leased.pool.leases["l"].fit_by is None


def test_of_two_servers_deadlines_the_sooner_one_counts() -> None:
    leased = LeasedPool()
    leased.used_mib = 700
    leased.shrink(within=60)
    leased.obey()
    assert leased.running is not None
    record = replace(leased.running.record, parts=2)
    leased.running = replace(leased.running, record=record)
    leased.start_again()
    other = replace(leased.running, record=replace(record, part=1, fit_by=(record.fit_by or 0) - 30))
    said = Report(
        server="two", address="", host="two", link_mbps=1, instance="1", cards=(), leases=(other,)
    )  # fmt: skip
    leased.pool.report(said, leased.now)
    assert leased.pool.leases["l"].fit_by == (record.fit_by or 0) - 30
