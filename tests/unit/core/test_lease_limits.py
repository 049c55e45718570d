"""A lease that was shrunk: how long it may hold more than its new limit."""

from msgspec.structs import replace

from egpu.core.leases import Lease, Pool, Report, RunningLease, Wish
from egpu.core.ledger import Card

CARD = Card(uuid="GPU-0", index=0, minor=0, memory_mib=1000)


class World:
    """A pool, one server that does as it is told, and a program that uses `used_mib`."""

    def __init__(self) -> None:
        self.pool = Pool("epoch")
        self.now = 0.0
        self.used_mib = 0
        self.read = 0
        self.running: RunningLease | None = None
        self.report()
        self.pool.grant(
            Wish(cards=1, core=50, memory_mib=800), lease="l", key="k", holder="pod:a", peer="p", request="1", now=0.0
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
            epoch="epoch", version=self.read,
        )  # fmt: skip
        self.pool.report(said, self.now)

    def wait(self, seconds: float) -> Lease:
        self.now += seconds
        self.pool.renew("l", self.now)
        self.pool.tick(self.now)
        return self.pool.leases["l"]

    def shrink(self, within: float | None) -> None:
        self.pool.resize("l", memory_mib=300, fit_by=None if within is None else self.now + within)


def test_a_program_over_its_new_limit_is_ended_at_the_deadline_and_not_before() -> None:
    world = World()
    world.used_mib = 700
    world.shrink(within=60)
    world.obey()
    lease = world.wait(59)
    assert (lease.state, lease.over_limit) == ("active", True)
    lease = world.wait(1)
    assert lease.state == "ending"
    assert lease.reason.startswith("over_limit: ")
    world.obey()
    assert world.pool.leases == {}
    assert world.pool.why_ended("l").startswith("over_limit: ")
    assert world.pool.ledger.snapshot()[("one", "GPU-0")][:2] == (100, 1000)


def test_a_program_that_gave_it_back_in_time_stays_whatever_it_uses_later() -> None:
    world = World()
    world.used_mib = 700
    world.shrink(within=60)
    world.obey()
    world.wait(30)
    world.used_mib = 300
    world.report()
    assert world.wait(31).fit_by is None
    assert world.wait(100).state == "active"


def test_without_a_deadline_nobody_is_ended_and_another_resize_sets_it_anew() -> None:
    world = World()
    world.used_mib = 700
    world.shrink(within=None)
    world.obey()
    assert world.wait(10_000).state == "active"
    world.shrink(within=60)
    world.pool.resize("l", memory_mib=700)
    world.obey()
    assert world.wait(10_000).state == "active"


def test_a_server_that_has_not_read_the_order_is_waited_for() -> None:
    world = World()
    world.used_mib = 300
    world.shrink(within=60)
    assert world.wait(70).state == "active", "the old limit is in force: that is no fault of the program"
    world.obey()
    assert world.wait(1).state == "active"
