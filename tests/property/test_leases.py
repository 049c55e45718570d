"""The pool under any order of events: servers that read orders late, end executors slowly, report late, die and come
back; brokers that start again knowing nothing; holders that come, go, and are cut off. What the *servers* really run
never exceeds a card."""

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from egpu.core.leasing.belief import believed
from egpu.core.leasing.pool import MAX_LEASES, SERVER_GRACE_SECONDS, TTL_SECONDS, Pool
from egpu.core.leasing.records import LeaseRecord, LeaseRequest, Report, RunningLease, lease_name
from egpu.core.placement.ledger import Card
from egpu_base.errors import DoesNotFit, NotFound, Unavailable

CARD_MIB = 1000
SERVERS = ("alpha", "beta")
CARDS = {
    name: tuple(Card(uuid=f"GPU-{name}-{index}", index=index, minor=index, memory_mib=CARD_MIB) for index in range(1))
    for name in SERVERS
}
server_names = st.sampled_from(SERVERS)


@dataclass
class FakeServer:
    """What a server daemon does, one step at a time. `orders` and `reports` are messages on the way."""

    name: str
    runs: dict[str, LeaseRecord] = field(default_factory=dict)
    dying: dict[str, LeaseRecord] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    read: tuple[str, int] = ("", 0)
    connected: bool = False
    instance: int = 0
    orders: deque[tuple[str, int, tuple[LeaseRecord, ...]]] = field(default_factory=deque)
    reports: deque[Report] = field(default_factory=deque)

    def apply(self) -> None:
        epoch, version, records = self.orders.popleft()
        wanted = {record.lease: record for record in records}
        for lease in self.runs.keys() - wanted.keys():
            self.dying[lease] = self.runs.pop(lease)
        self.runs.update(wanted)
        self.read = (epoch, version)

    def report(self) -> Report:
        leases = tuple(
            RunningLease(
                record=record,
                occupied_mib=tuple(max(share.memory_mib, self.used.get(lease, 0)) for share in record.cards),
                ready=True,
            )
            for lease, record in (self.runs | self.dying).items()
        )
        return Report(
            server=self.name, address="", host=self.name, link_mbps=1000, instance=str(self.instance),
            cards=CARDS[self.name], leases=leases, epoch=self.read[0], version=self.read[1],
        )  # fmt: skip

    def load(self) -> dict[str, tuple[int, int]]:
        """(percent, MiB) that really runs, by card."""
        total = {card.uuid: (0, 0) for card in CARDS[self.name]}
        for lease, record in (self.runs | self.dying).items():
            for share in record.cards:
                core, memory = total[share.uuid]
                total[share.uuid] = (core + share.core, memory + max(share.memory_mib, self.used.get(lease, 0)))
        return total


class PoolMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.epochs = 0
        self.numbers = 0
        self.servers = {name: FakeServer(name) for name in SERVERS}
        self.new_pool()
        for name in SERVERS:
            self.connect(name)

    def new_pool(self) -> None:
        self.epochs += 1
        self.pool = Pool(f"epoch-{self.epochs}")
        for server in self.servers.values():
            server.connected = False
            server.orders.clear()
            server.reports.clear()

    def connect(self, name: str) -> None:
        server = self.servers[name]
        if not server.connected:
            server.connected = True
            server.reports.append(server.report())
            self.deliver_report(name)

    def send_orders(self) -> None:
        for name in list(self.pool.changed):
            self.pool.changed.discard(name)
            if name in self.pool.servers and self.servers[name].connected:
                version, records = self.pool.orders(name)
                self.servers[name].orders.append((self.pool.epoch, version, records))

    def deliver_report(self, name: str) -> None:
        server = self.servers[name]
        if server.connected and server.reports:
            report, doubted = believed(server.reports.popleft(), self.pool, max_leases=MAX_LEASES)
            assert not doubted, "an honest server is believed, whatever was lost on the way"
            self.pool.report(report, self.now)
            self.send_orders()

    # --- events ---

    @rule(
    cards=st.integers(1, 2), core=st.sampled_from([10, 60]), memory=st.sampled_from([500, 1000]),
        host=st.sampled_from(["", *SERVERS]),
    )  # fmt: skip
    def grant(self, cards: int, core: int, memory: int, host: str) -> None:
        self.numbers += 1
        key = f"{self.epochs}-{self.numbers}"
        try:
            made = self.pool.grant(
                LeaseRequest(cards=cards, core=core, memory_mib=memory, host=host),
                lease=lease_name(key),
                key=key,
                holder="pod:a",
                peer="p",
                request=str(self.numbers),
                now=self.now,
            )
        except (DoesNotFit, Unavailable):
            return
        assert sum(len(part.wanted) for part in made.parts.values()) == cards
        self.send_orders()

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.pool.leases) or [""]))

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.pool.end(self.pick(data), "released")
        self.send_orders()

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        try:
            self.pool.renew(self.pick(data), self.now)
        except NotFound:
            return

    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        self.pool.let_go(self.pick(data), self.now)

    @rule(
        data=st.data(),
        core=st.sampled_from([None, 5, 80]),
        memory=st.sampled_from([None, 50, 600]),
        patient=st.booleans(),
    )
    def resize(self, data: st.DataObject, core: int | None, memory: int | None, patient: bool) -> None:
        before = self.pool.ledger.snapshot()
        try:
            fit_by = None if patient else self.now + 5
            self.pool.resize(self.pick(data), core=core, memory_mib=memory, fit_by=fit_by)
        except NotFound:
            return
        except DoesNotFit:
            assert self.pool.ledger.snapshot() == before
        self.send_orders()

    @rule(name=server_names)
    def read_order(self, name: str) -> None:
        if self.servers[name].orders:
            self.servers[name].apply()

    @rule(name=server_names, use=st.booleans())
    def write_report(self, name: str, use: bool) -> None:
        server = self.servers[name]
        if not server.connected:
            return
        for lease, record in server.runs.items():
            if use:  # all of its limit: after a shrink a program still has what it had
                server.used[lease] = max(server.used.get(lease, 0), record.cards[0].memory_mib)
        server.reports.append(server.report())

    @rule(name=server_names)
    def programs_free_memory(self, name: str) -> None:
        self.servers[name].used.clear()

    @rule(name=server_names)
    def executors_have_ended(self, name: str) -> None:
        self.servers[name].dying.clear()

    @rule(name=server_names)
    def read_report(self, name: str) -> None:
        self.deliver_report(name)

    @rule(name=server_names)
    def executor_dies(self, name: str) -> None:
        server = self.servers[name]
        if server.runs:
            lease = next(iter(server.runs))
            del server.runs[lease]

    @rule(name=server_names)
    def server_is_cut_off(self, name: str) -> None:
        server = self.servers[name]
        if server.connected:
            server.connected = False
            server.orders.clear()
            server.reports.clear()
            self.pool.server_away(name, self.now)

    @rule(name=server_names)
    def server_comes_back(self, name: str) -> None:
        self.connect(name)

    @rule(name=server_names)
    def server_starts_again(self, name: str) -> None:
        """It adopts its executors, and has read nothing of this pool."""
        self.server_is_cut_off(name)
        server = self.servers[name]
        server.instance += 1
        server.read = ("", 0)
        self.connect(name)

    @rule()
    def broker_starts_again(self) -> None:
        self.new_pool()

    @rule(seconds=st.sampled_from([0.3, 1.5, TTL_SECONDS + 1, SERVER_GRACE_SECONDS + 1]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.pool.tick(self.now)
        self.send_orders()

    # --- what always holds ---

    @invariant()
    def no_card_is_over_committed(self) -> None:
        for server in self.servers.values():
            for uuid, (core, memory) in server.load().items():
                assert core <= 100, f"{uuid} runs {core} %"
                assert memory <= CARD_MIB, f"{uuid} runs {memory} MiB"

    @invariant()
    def the_ledger_agrees(self) -> None:
        assert self.pool.ledger.overcommits() == []
        held = {holder.id.rpartition("@")[0] for holder in self.pool.ledger.holders()}
        assert held <= self.pool.leases.keys()

    def teardown(self) -> None:
        """Nothing leaks: once all holders are gone and all servers are back, everything is free."""
        if not hasattr(self, "pool"):
            return
        for lease in list(self.pool.leases):
            self.pool.end(lease, "teardown")
        for _ in range(6):
            for name in SERVERS:
                self.connect(name)
                self.send_orders()
                server = self.servers[name]
                while server.orders:
                    server.apply()
                server.dying.clear()
                server.reports.append(server.report())
                while server.reports:
                    self.deliver_report(name)
            for lease in list(self.pool.leases):  # those that were only adopted just now
                self.pool.end(lease, "teardown")
            self.send_orders()
        assert self.pool.leases == {}
        assert self.pool.ledger.holders() == {}
        assert all(not server.runs for server in self.servers.values())
        assert self.pool._per_holder == {}
        assert self.pool._by_request == {}
        assert all(not server.leases for server in self.pool.servers.values())


PoolMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestPool = PoolMachine.TestCase


def test_a_report_from_before_the_order_does_not_free_what_is_being_started() -> None:
    pool = Pool("e")
    server = FakeServer("alpha")
    pool.report(server.report(), 0)
    asked = LeaseRequest(cards=1, core=100, memory_mib=CARD_MIB)
    made = pool.grant(asked, lease="one", key="k", holder="h", peer="p", request="1", now=0)
    pool.end("one", "released at once")
    pool.report(server.report(), 0)  # written before the server read either order
    assert made.id in pool.leases
    with pytest.raises(DoesNotFit):
        pool.grant(asked, lease="two", key="k", holder="h", peer="p", request="2", now=0)
    version, records = pool.orders("alpha")
    assert records == ()
    server.read = ("e", version)
    pool.report(server.report(), 0)
    assert pool.leases == {}


def test_memory_that_a_shrunk_lease_still_uses_is_not_given_out() -> None:
    pool = Pool("e")
    server = FakeServer("alpha")
    pool.report(server.report(), 0)
    asked = LeaseRequest(cards=1, core=10, memory_mib=CARD_MIB)
    pool.grant(asked, lease="one", key="k", holder="h", peer="p", request="1", now=0)
    server.orders.append(("e", *pool.orders("alpha")))
    server.apply()
    server.used["one"] = CARD_MIB
    pool.resize("one", memory_mib=100)
    server.orders.append(("e", *pool.orders("alpha")))
    server.apply()
    pool.report(server.report(), 0)
    assert pool.leases["one"].over_limit
    small = LeaseRequest(cards=1, core=10, memory_mib=900)
    with pytest.raises(DoesNotFit):
        pool.grant(small, lease="two", key="k", holder="h", peer="p", request="2", now=0)
    server.used["one"] = 100
    pool.report(server.report(), 0)
    assert not pool.leases["one"].over_limit
    assert pool.grant(small, lease="two", key="k", holder="h", peer="p", request="2", now=0).state == "granted"
