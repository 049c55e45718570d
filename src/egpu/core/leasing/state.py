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
from egpu.core.leasing.records import LeaseRecord, Report, RunningLease
from egpu.core.placement.cards import Card

State = Literal["granted", "active", "ending"]


@dataclass(frozen=True)
class Part:
    """The share of a lease on one server. `wanted` is empty once it has to end; `ordered` is the version of the order
    that last changed it."""

    wanted: tuple[CardShare, ...]
    ordered: int
    running: RunningLease | None = None

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

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self.parts)

    @property
    def lacks_parts(self) -> bool:
        """True if a server that has a part of it has not reported since this pool started, or was never told."""
        return self.state == "granted" and len(self.parts) < self.expected_parts

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
            return (each.running.record.part if each.running is not None else place, place)

        return replace(self, parts=dict(entry for _, entry in sorted(enumerate(merged.items()), key=number)))

    def record(self, server: str) -> LeaseRecord:
        """Return the order for `server`."""
        part = self.parts[server]
        number = self.servers.index(server) if part.running is None else part.running.record.part
        return LeaseRecord(
            lease=self.id, holder=self.holder, peer=self.peer, request=self.request, key=self.key,
            part=number, parts=self.expected_parts, cards=part.wanted, fit_by=self.fit_by,
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
    away_since: float | None = None
    version: int = 0
    leases: set[str] = field(default_factory=set[str])

    def says(self, report: Report) -> None:
        """Record the server's report about itself: it is connected, its cards, and where it is."""
        self.address, self.host, self.link_mbps = report.address, report.host, report.link_mbps
        self.instance, self.cards, self.away_since = report.instance, report.cards, None
        self.directory, self.confinement, self.libraries = report.directory, report.confinement, report.libraries
        self.collectives, self.simulated = report.collectives, report.simulated
