"""A lease and a server as the pool knows them at one moment.

    granted ──► active ──► ending ──► (forgotten)
       └────────────────────┘▲
                 released, revoked, expired, failed

The *wanted* part on a server is the pool's decision; the *occupied* part is in the server's last report. A card counts
as held by the larger of the two. So a slice counts from its grant until its server has reported that nothing of it runs
any more. Growth counts at once, and shrinking counts when the memory is really released.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from egpu.api.allocation import CardShare
from egpu.core.leasing.records import LeaseRecord, Report, RunningLease, shares_room
from egpu.core.placement.cards import Card

State = Literal["granted", "active", "ending"]


@dataclass(frozen=True)
class Part:
    """The share of a lease on one server. `wanted` is empty once it has to end; `ordered` is the version of the order
    that last changed it. `place` and `number` are those of its records, `number` -1 until one is known."""

    wanted: tuple[CardShare, ...]
    ordered: int
    running: RunningLease | None = None
    place: int = 0
    number: int = -1
    gpu_seconds: float = 0.0
    """GPU time at its earlier places."""

    @property
    def held(self) -> tuple[CardShare, ...]:
        """The part that counts on its cards: the larger of what is wanted and what the server reports as occupied."""
        held = {share.uuid: share for share in self.wanted}
        if self.running is not None:
            for share, occupied in zip(self.running.record.cards, self.running.occupied_mib, strict=False):
                wanted = held.get(share.uuid)
                held[share.uuid] = msgspec.structs.replace(
                    share,
                    core=max(share.core, wanted.core if wanted else 0),
                    memory_mib=max(share.memory_mib, occupied, wanted.memory_mib if wanted else 0),
                )
        return tuple(held.values())


@dataclass(frozen=True)
class Outcome:
    """The end of a move to the place of this number. `why`: why it did not happen, "" if it did; `kind` is that in one
    word, for metrics."""

    place: int
    why: str = ""
    kind: str = ""
    bytes: int = 0
    paused_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class Second:
    """A second place of one part of a lease, which is not final (`egpu.core.leasing.moves` has the states)."""

    state: Literal["target", "cancelled", "left", "gone"]
    server: str
    part: Part
    since: float
    source: str = ""
    """The server that the part leaves."""
    token: str = ""
    cancelled: int = 0
    """The version of the source's orders from which on nothing leaves any more."""
    outcome: Outcome | None = None
    """Why it was cancelled."""

    @property
    def may_arrive(self) -> bool:
        """True if the part may still come to this place."""
        return self.state in ("target", "cancelled")


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A lease as the pool knows it. `parts` by server, in the order of the ordinals."""

    id: str
    holder: str
    peer: str
    request: str
    key: str
    state: State
    parts: Mapping[str, Part]
    expected_parts: int
    deadline: float
    """The time when it ends without a renewal."""
    since: float
    """The time when this pool granted it, or learned of it from its server."""
    reason: str = ""
    fit_by: float | None = None
    """The time when it ends if it still exceeds its reduced memory limit (Unix time, seconds); None: no deadline."""
    is_adopted: bool = False
    """True if this pool knows the grant and its holder only from a server's report."""
    is_learned: bool = False
    """True if this pool did not grant it: servers may report places of it that this pool has not ordered."""
    second: Second | None = None
    moved: Outcome | None = None
    """The end of its last move."""
    looks: int = 0
    """How often somebody asked whether it can move."""
    park_idle_seconds: float = 0.0
    """The time without a call after which it counts as idle, if it shares room."""

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self.parts)

    @property
    def lacks_parts(self) -> bool:
        """True if a server that has a part of it has not reported since this pool started, or was never told."""
        return self.state == "granted" and len(self.parts) < self.expected_parts

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Return where its parts are: server and number of the place."""
        return tuple((server, part.place) for server, part in self.parts.items())

    def is_at(self, server: str) -> bool:
        """Return whether any part of it has a place on the server, final or not."""
        return server in self.parts or (self.second is not None and self.second.server == server)

    @property
    def shares_room(self) -> bool:
        """True if memory of it may be parked for other leases."""
        return any(shares_room(part.held) for part in self.parts.values())

    @property
    def over_limit(self) -> bool:
        """True if it still exceeds its reduced memory limit."""
        return any(
            occupied > share.memory_mib
            for part in self.parts.values()
            if part.running is not None and len(part.running.occupied_mib) == len(part.wanted)
            for occupied, share in zip(part.running.occupied_mib, part.wanted, strict=True)
        )

    @property
    def shrunk(self) -> bool:
        """True if every server has the new limits in force: any excess is then its program's fault."""
        return all(
            part.running is not None and part.running.record.cards == part.wanted for part in self.parts.values()
        )

    @property
    def in_force(self) -> bool:
        """True if every server has the whole order in force: the limits, and their deadline."""
        return self.shrunk and all(
            part.running is not None and part.running.record.fit_by == self.fit_by for part in self.parts.values()
        )

    def with_part(self, server: str, part: Part) -> "Lease":
        """Return the lease with this part, sorted by number: servers report in any order after a restart."""
        merged = {**self.parts, server: part}

        def number(entry: tuple[int, tuple[str, Part]]) -> tuple[int, int]:
            place, (_, each) = entry
            known = each.number if each.running is None else each.running.record.part
            return (known if known >= 0 else place, place)

        return replace(self, parts=dict(entry for _, entry in sorted(enumerate(merged.items()), key=number)))

    def records(self, server: str) -> list[LeaseRecord]:
        """Return the orders for `server`: what has to run there of this lease."""
        found = [self.parts[server]] if server in self.parts else []
        if self.second is not None and self.second.server == server:
            found.append(self.second.part)
        return [self._record(server, part) for part in found if part.wanted]

    def record(self, server: str) -> LeaseRecord:
        """Return the order for `server` about the final place there."""
        return self._record(server, self.parts[server])

    def _record(self, server: str, part: Part) -> LeaseRecord:
        number = part.number if part.running is None else part.running.record.part
        return LeaseRecord(
            lease=self.id, holder=self.holder, peer=self.peer, request=self.request, key=self.key,
            part=self.servers.index(server) if number < 0 else number, parts=self.expected_parts, cards=part.wanted,
            fit_by=self.fit_by, place=part.place, gpu_seconds=part.gpu_seconds,
            park_idle_seconds=self.park_idle_seconds,
        )  # fmt: skip


@dataclass
class Server:
    """A server as the pool knows it, from its reports. `away_since` None: connected. `version`: of its orders."""

    name: str
    address: str = ""
    host: str = ""
    link_mbps: int = 0
    instance: str = ""
    cards: tuple[Card, ...] = ()
    directory: str = ""
    confinement: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict[str, str])
    collectives: bool = False
    simulated: bool = False
    movable: bool = False
    cordoned: bool = False
    parking_mib: int = 0
    thrashing: tuple[str, ...] = ()
    to_cordon: bool | None = None
    """What an administrator wants, until the server has it; None: as it is."""
    away_since: float | None = None
    version: int = 0
    leases: set[str] = field(default_factory=set[str])

    def says(self, report: Report) -> None:
        """Record the server's report about itself: it is connected, its cards, and where it is."""
        self.address, self.host, self.link_mbps = report.address, report.host, report.link_mbps
        self.instance, self.cards, self.away_since = report.instance, report.cards, None
        self.directory, self.confinement, self.libraries = report.directory, report.confinement, report.libraries
        self.collectives, self.simulated, self.movable = report.collectives, report.simulated, report.movable
        self.cordoned, self.parking_mib, self.thrashing = report.cordoned, report.parking_mib, report.thrashing
        if self.to_cordon == self.cordoned:
            self.to_cordon = None

    @property
    def is_cordoned(self) -> bool:
        """Return whether an administrator keeps new leases off its cards."""
        return self.cordoned if self.to_cordon is None else self.to_cordon

    @property
    def offered(self) -> tuple[Card, ...]:
        """Return its cards as the ledger has them."""
        if not self.is_cordoned:
            return self.cards
        return tuple(replace(card, healthy=False, cordoned=card.healthy) for card in self.cards)
