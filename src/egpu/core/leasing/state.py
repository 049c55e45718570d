"""A lease and a server as the pool knows them at one moment.

    granted ──► active ──► ending ──► (forgotten)
       └────────────────────┘▲
                 released, revoked, expired, failed

What is *wanted* of a server's part is what the pool decided; what is *occupied* is what the server last said that it
runs. A card counts as held by the larger of the two. So a slice is taken from the moment it is granted until its server
has said that nothing of it runs any more, growing counts at once, and shrinking counts when the memory has really been
given back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from egpu.api.allocation import CardShare
from egpu.core.leasing.records import LeaseRecord, Report, RunningLease
from egpu.core.placement.cards import Card

State = Literal["granted", "active", "ending"]


@dataclass(frozen=True)
class Part:
    """The share of a lease on one server. `wanted` is empty once it is to end; `ordered` is the version of the order
    that last changed it."""

    wanted: tuple[CardShare, ...]
    ordered: int
    running: RunningLease | None = None

    @property
    def held(self) -> tuple[CardShare, ...]:
        """What it takes of its cards: the larger of what is wanted and what its server says that it occupies."""
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
    """When it ends unless its holder is heard of."""
    since: float
    """When this pool granted it, or heard of it from its server."""
    reason: str = ""
    fit_by: float | None = None
    """When it ends if it still uses more memory than it was shrunk to (Unix time, seconds); None: it is given all the
    time it needs."""
    is_adopted: bool = False
    """Whether this pool knows by a server's word alone that it was granted, and to whom."""

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self.parts)

    @property
    def over_limit(self) -> bool:
        """Whether it still uses more memory than it was shrunk to."""
        return any(
            occupied > share.memory_mib
            for part in self.parts.values()
            if part.running is not None and len(part.running.occupied_mib) == len(part.wanted)
            for occupied, share in zip(part.running.occupied_mib, part.wanted, strict=True)
        )

    @property
    def shrunk(self) -> bool:
        """Whether every server has the limits wanted in force: what it uses beyond them is then its program's doing."""
        return all(
            part.running is not None and part.running.record.cards == part.wanted for part in self.parts.values()
        )

    @property
    def in_force(self) -> bool:
        """Whether every server has all that was ordered: the limits, and when they must be kept."""
        return self.shrunk and all(
            part.running is not None and part.running.record.fit_by == self.fit_by for part in self.parts.values()
        )

    def with_part(self, server: str, part: Part) -> "Lease":
        """The lease with this part, by the number of the part where the servers say it: after a restart they report in
        any order."""
        merged = {**self.parts, server: part}

        def number(entry: tuple[int, tuple[str, Part]]) -> tuple[int, int]:
            place, (_, each) = entry
            return (each.running.record.part if each.running is not None else place, place)

        return replace(self, parts=dict(entry for _, entry in sorted(enumerate(merged.items()), key=number)))

    def record(self, server: str) -> LeaseRecord:
        """What `server` is ordered to run."""
        part = self.parts[server]
        number = self.servers.index(server) if part.running is None else part.running.record.part
        return LeaseRecord(
            lease=self.id, holder=self.holder, peer=self.peer, request=self.request, key=self.key,
            part=number, parts=self.expected_parts, cards=part.wanted, fit_by=self.fit_by,
        )  # fmt: skip


@dataclass
class Server:
    """A server as the pool knows it, by what it `says`. `away_since` None: it is connected. `version` is that of its
    orders."""

    name: str
    address: str = ""
    host: str = ""
    link_mbps: int = 0
    instance: str = ""
    cards: tuple[Card, ...] = ()
    directory: str = ""
    confinement: str = ""
    collectives: bool = False
    simulated: bool = False
    away_since: float | None = None
    version: int = 0
    leases: set[str] = field(default_factory=set[str])

    def says(self, report: Report) -> None:
        """What it says of itself: it is connected, and these are its cards and where it is."""
        self.address, self.host, self.link_mbps = report.address, report.host, report.link_mbps
        self.instance, self.cards, self.away_since = report.instance, report.cards, None
        self.directory, self.confinement = report.directory, report.confinement
        self.collectives, self.simulated = report.collectives, report.simulated
