"""Moves of leases under any order of events: late reports and orders, executors, daemons and brokers that die, cut
networks. Each lease has one place that counts, which the pool never ends by mistake."""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from egpu.core.leasing.belief import believed
from egpu.core.leasing.moves import MOVE_SECONDS
from egpu.core.leasing.pool import MAX_LEASES, Pool
from egpu.core.leasing.records import (
    Departure,
    LeaseRecord,
    LeaseRequest,
    MoveRecord,
    Report,
    RunningLease,
    lease_name,
)
from egpu.core.placement.ledger import Card
from egpu_base.errors import DoesNotFit, NotFound, Refused, Unavailable

CARD_MIB = 1000
SERVERS = ("alpha", "beta")
CARDS = {
    name: tuple(Card(uuid=f"GPU-{name}-{index}", index=index, minor=index, memory_mib=CARD_MIB) for index in range(2))
    for name in SERVERS
}
names = st.sampled_from(SERVERS)
Place = tuple[str, int]
"""A lease, and the number of its place."""


@dataclass
class Executor:
    """A process. It holds the sessions of its lease unless it is only a target, or they have left."""

    record: LeaseRecord
    state: Literal["target", "restored", "runs", "left"]
    left_for: int = 0


@dataclass
class Daemon:
    """What a server does, one step at a time. `orders` and `reports` are messages on the way."""

    name: str
    executors: dict[Place, Executor] = field(default_factory=dict)
    dying: list[RunningLease] = field(default_factory=list)
    failed: dict[Place, RunningLease] = field(default_factory=dict)
    moves: dict[Place, MoveRecord] = field(default_factory=dict)
    going: dict[Place, int] = field(default_factory=dict)
    """The new place of each that is leaving."""
    refused: dict[Place, int] = field(default_factory=dict)
    unsure: dict[Place, int] = field(default_factory=dict)
    """Executors to which an earlier daemon may have said that they shall leave for the place of this number."""
    read: tuple[str, int] = ("", 0)
    connected: bool = False
    instance: int = 0
    orders: deque[tuple[str, int, tuple[LeaseRecord, ...], tuple[MoveRecord, ...]]] = field(default_factory=deque)
    reports: deque[Report] = field(default_factory=deque)

    def report(self) -> Report:
        leases: list[RunningLease] = []
        for (lease, place), one in self.executors.items():
            key = lease, place
            departure = None
            if one.state == "left":
                departure = Departure(place=one.left_for, state="left")
            elif key in self.unsure:
                departure = Departure(place=0, state="unsure")
            elif key in self.going:
                departure = Departure(place=self.going[key], state="going")
            elif key in self.refused:
                departure = Departure(place=self.refused[key], state="refused", why="no")
            leases.append(
                RunningLease(
                    record=one.record, occupied_mib=tuple(share.memory_mib for share in one.record.cards),
                    ready=one.state != "target", arriving=key in self.moves, departure=departure,
                )
            )  # fmt: skip
        leases += [*self.failed.values(), *self.dying]
        return Report(
            server=self.name, address=f"{self.name}:1", host=self.name, link_mbps=1000, instance=str(self.instance),
            cards=CARDS[self.name], leases=tuple(leases), epoch=self.read[0], version=self.read[1], movable=True,
        )  # fmt: skip

    def load(self) -> dict[str, tuple[int, int]]:
        """(percent, MiB) that really runs, by card."""
        total = {card.uuid: (0, 0) for card in CARDS[self.name]}
        for record in [
            *(one.record for one in self.executors.values() if one.state != "left"),
            *(one.record for one in self.dying),
        ]:
            for share in record.cards:
                core, memory = total[share.uuid]
                total[share.uuid] = (core + share.core, memory + share.memory_mib)
        return total

    def apply(self) -> list[Place]:
        """Carry out the next orders. Return the executors that were ended."""
        epoch, version, records, moves = self.orders.popleft()
        wanted = {(record.lease, record.place): record for record in records}
        self.moves = {(one.lease, one.place): one for one in moves if one.target == self.name}
        leaving = {(one.lease, one.place) for one in moves if one.source == self.name and one.token}
        ended = [key for key in self.executors if key not in wanted]
        for key in ended:
            one = self.executors.pop(key)
            self.going.pop(key, None)
            if one.state != "left":
                occupied = tuple(share.memory_mib for share in one.record.cards)
                arriving = one.state in ("target", "restored")
                self.dying.append(RunningLease(record=one.record, occupied_mib=occupied, arriving=arriving))
        self.failed = {key: one for key, one in self.failed.items() if key in wanted}
        for key, record in wanted.items():
            if key in self.executors:
                one = self.executors[key]
                one.record = record
                if one.state in ("target", "restored") and key not in self.moves:
                    assert one.state == "restored", "a place without sessions is final"
                    one.state = "runs"
            elif key not in self.failed:
                self.executors[key] = Executor(record, "target" if key in self.moves else "runs")
        for key, one in self.executors.items():
            if self.going.get(key) and (key[0], self.going[key]) not in leaving:
                del self.going[key]
            if self.refused.get(key) and (key[0], self.refused[key]) not in leaving:
                del self.refused[key]
            if one.state == "runs" and key not in self.unsure:
                new = next((place for lease, place in leaving if lease == key[0] and place > key[1]), 0)
                if new and key not in self.going and self.refused.get(key) != new:
                    self.going[key] = new
        self.read = (epoch, version)
        return ended


class MovingMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.epochs = 0
        self.numbers = 0
        self.given_up: set[str] = set()
        """Leases that a pool has ended, whose executors may be ended."""
        self.damaged: set[str] = set()
        """Leases of which an executor died while it mattered."""
        self.servers = {name: Daemon(name) for name in SERVERS}
        self.new_pool()

    def new_pool(self) -> None:
        self.epochs += 1
        self.pool = Pool(f"epoch-{self.epochs}")
        for server in self.servers.values():
            server.connected = False
            server.orders.clear()
            server.reports.clear()
        for name in SERVERS:
            self.connect(name)

    def connect(self, name: str) -> None:
        server = self.servers[name]
        if not server.connected:
            server.connected = True
            server.reports.append(server.report())
            self.deliver_report(name)

    def settle(self) -> None:
        """What the broker does at the end of a step."""
        self.given_up |= self.pool.ended.keys()
        for name in list(self.pool.changed):
            self.pool.changed.discard(name)
            if name in self.pool.servers and self.servers[name].connected:
                version, records = self.pool.orders(name)
                self.servers[name].orders.append((self.pool.epoch, version, records, self.pool.moves(name)))

    def deliver_report(self, name: str) -> None:
        server = self.servers[name]
        if server.connected and server.reports:
            report, doubted = believed(server.reports.popleft(), self.pool, max_leases=MAX_LEASES)
            assert not doubted, "an honest server is believed, whatever was lost on the way"
            self.pool.report(report, self.now)
            self.settle()

    def renew_all(self) -> None:
        for lease in list(self.pool.leases):
            try:
                self.pool.renew(lease, self.now)
            except NotFound:
                continue

    # --- events of the pool ---

    @rule(memory=st.sampled_from([300, 700]), host=names)
    def grant(self, memory: int, host: str) -> None:
        self.numbers += 1
        key = f"{self.epochs}-{self.numbers}"
        asked = LeaseRequest(cards=1, core=40, memory_mib=memory, host=host)
        try:
            self.pool.grant(
                asked, lease=lease_name(key), key=key, holder="h", peer="p", request=str(self.numbers), now=self.now
            )
        except (DoesNotFit, Unavailable):
            return
        self.settle()

    @rule(data=st.data(), where=st.sampled_from(["", *SERVERS]))
    def move(self, data: st.DataObject, where: str) -> None:
        lease = data.draw(st.sampled_from(sorted(self.pool.leases) or [""]))
        try:
            self.pool.move(lease, token=f"token-{self.numbers}", now=self.now, server=where)
        except (NotFound, DoesNotFit, Unavailable, Refused):
            return
        self.settle()

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.pool.end(data.draw(st.sampled_from(sorted(self.pool.leases) or [""])), "released")
        self.settle()

    @rule(seconds=st.sampled_from([0.3, 5.0, 31.0, MOVE_SECONDS]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.renew_all()
        self.pool.tick(self.now)
        self.settle()

    @rule()
    def broker_starts_again(self) -> None:
        self.new_pool()

    # --- events of servers ---

    @rule(name=names)
    def read_order(self, name: str) -> None:
        server = self.servers[name]
        if not server.orders:
            return
        holding = {key for key in server.executors if self.holds(name, key)}
        for lease, _ in set(server.apply()) & holding:
            assert lease in self.given_up, "an executor with the only sessions was ended by a move"

    def holds(self, name: str, key: Place) -> bool:
        """Return whether the sessions of a lease are here and nowhere else."""
        one = self.servers[name].executors[key]
        if one.state == "restored":
            return any(
                source.state == "left" and source.left_for == key[1] and lease == key[0]
                for server in self.servers.values()
                for (lease, _), source in server.executors.items()
            ) or not any(
                other.state == "runs" and lease == key[0] and place < key[1]
                for server in self.servers.values()
                for (lease, place), other in server.executors.items()
            )
        return one.state == "runs"

    @rule(name=names)
    def write_report(self, name: str) -> None:
        if self.servers[name].connected:
            self.servers[name].reports.append(self.servers[name].report())

    @rule(name=names)
    def read_report(self, name: str) -> None:
        self.deliver_report(name)

    @rule(name=names)
    def executors_have_ended(self, name: str) -> None:
        self.servers[name].dying.clear()

    @rule(name=names)
    def sessions_are_restored(self, name: str) -> None:
        for (lease, _), new in self.leaving(name):
            target = next((s for s in self.servers.values() if (lease, new) in s.executors), None)
            if target is not None and target.executors[lease, new].state == "target":
                move = target.moves.get((lease, new))
                if move is not None and move.token and move.source == name:
                    target.executors[lease, new].state = "restored"

    def leaving(self, name: str) -> list[tuple[Place, int]]:
        server = self.servers[name]
        return [*server.going.items(), *((key, new) for key, new in server.unsure.items() if new)]

    @rule(name=names)
    def sessions_leave(self, name: str) -> None:
        """The point of no return; also by what an earlier daemon has said."""
        server = self.servers[name]
        for (lease, place), new in self.leaving(name):
            target = next((s for s in self.servers.values() if (lease, new) in s.executors), None)
            if target is not None and target.executors[lease, new].state == "restored":
                server.executors[lease, place].state = "left"
                server.executors[lease, place].left_for = new
                server.going.pop((lease, place), None)
                server.unsure.pop((lease, place), None)

    @rule(name=names)
    def a_move_is_refused(self, name: str) -> None:
        server = self.servers[name]
        for key in list(server.going):
            server.refused[key] = server.going.pop(key)

    @rule(name=names, arriving=st.booleans())
    def executor_dies(self, name: str, arriving: bool) -> None:
        server = self.servers[name]
        for key, one in list(server.executors.items()):
            if (one.state in ("target", "restored")) == arriving and one.state != "left":
                if self.holds(name, key):
                    self.damaged.add(key[0])
                del server.executors[key]
                server.going.pop(key, None)
                server.unsure.pop(key, None)
                nothing = tuple(0 for _ in one.record.cards)
                server.failed[key] = RunningLease(
                    record=one.record, occupied_mib=nothing, failure="it died", arriving=key in server.moves
                )
                return

    @rule(name=names)
    def server_is_cut_off(self, name: str) -> None:
        server = self.servers[name]
        if server.connected:
            server.connected = False
            server.orders.clear()
            server.reports.clear()
            self.pool.server_away(name, self.now)
            self.settle()

    @rule(name=names)
    def server_comes_back(self, name: str) -> None:
        self.connect(name)

    @rule(name=names)
    def daemon_starts_again(self, name: str) -> None:
        """It adopts its executors, and has read nothing. What it said to executors may still be under way."""
        self.server_is_cut_off(name)
        server = self.servers[name]
        server.instance += 1
        server.read = ("", 0)
        server.unsure = {key: server.going.get(key, 0) for key, one in server.executors.items() if one.state != "left"}
        server.going, server.refused, server.failed, server.moves = {}, {}, {}, {}
        for key, one in server.executors.items():  # stored beside the executor
            if one.state in ("target", "restored"):
                server.moves[key] = MoveRecord(
                    lease=key[0], place=key[1], source="", target=name, address="", token=""
                )  # fmt: skip
        self.connect(name)

    @rule(name=names)
    def daemon_is_sure(self, name: str) -> None:
        self.servers[name].unsure.clear()

    # --- what always holds ---

    @invariant()
    def no_card_is_over_committed(self) -> None:
        for server in self.servers.values():
            for uuid, (core, memory) in server.load().items():
                assert core <= 100, f"{uuid} runs {core} %"
                assert memory <= CARD_MIB, f"{uuid} runs {memory} MiB"
        assert self.pool.ledger.overcommits() == []

    @invariant()
    def what_holds_sessions_is_counted(self) -> None:
        for name, server in self.servers.items():
            if not server.connected or name not in self.pool.servers:
                continue
            for lease, place in server.executors:
                found = self.pool.leases.get(lease)
                if found is not None and self.holds(name, (lease, place)):
                    ids = {holder.id for holder in self.pool.ledger.holders()}
                    assert f"{lease}@{name}" + (f"#{place}" if place else "") in ids

    @invariant()
    def no_target_is_final_while_its_source_runs(self) -> None:
        for lease in self.pool.leases.values():
            for _, place in lease.places:
                for server in self.servers.values():
                    for (name, older), one in server.executors.items():
                        runs = name == lease.id and older < place and one.state == "runs"
                        assert not runs or lease.state == "ending"

    def teardown(self) -> None:
        """Every move ends, and each lease that nothing has damaged is where its sessions are."""
        if not hasattr(self, "pool"):
            return
        for patient in (True, False):
            for _ in range(8):
                for name in SERVERS:
                    self.connect(name)
                    self.settle()
                    server = self.servers[name]
                    while server.orders:
                        self.read_order(name)
                    server.dying.clear()
                    server.unsure.clear()
                    self.sessions_are_restored(name)
                    self.sessions_leave(name)
                    server.reports.append(server.report())
                    while server.reports:
                        self.deliver_report(name)
            if patient:
                self.time_passes(MOVE_SECONDS)
        for lease in self.pool.leases.values():
            assert lease.second is None, "every move ends"
            for server, place in lease.places:
                assert self.holds(server, (lease.id, place)) or lease.id in self.damaged
        for name, server in self.servers.items():
            for key, one in server.executors.items():
                assert key[0] in self.pool.leases, f"{key} {one.state} is left over on {name}"


MovingMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestMovingLeases = MovingMachine.TestCase
