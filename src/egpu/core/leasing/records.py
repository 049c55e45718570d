"""The messages about leases between programs, the pool and its servers, and the records stored beside executors."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from egpu.api import names
from egpu.api.allocation import CardShare
from egpu.core.placement.cards import Card
from egpu_base.errors import InvalidInput

MOST_IDLE_SECONDS: Final = 86_400
"""A lease that is idle for a day has no use for a longer time."""
LEASE_NAME_DIGITS: Final = 20
"""Hexadecimal digits. Sockets are created below a directory of that name, and the kernel limits their paths."""


@dataclass(frozen=True, kw_only=True)
class LeaseRequest:
    """A request for a lease, with amounts per card; `host`: the id of the program's machine, which is preferred. With
    `resident_percent`, only this part of the memory has its own room on the card. The rest is parked for others while
    the program makes no call for `park_idle_seconds`."""

    cards: int
    core: int
    memory_mib: int
    host: str = ""
    resident_percent: int = 0
    park_idle_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.cards <= names.MAX_CARDS_PER_CONTAINER:
            raise InvalidInput("gpus", f"{self.cards} is not between 1 and {names.MAX_CARDS_PER_CONTAINER}")
        check_amounts(self.core, self.memory_mib)
        if not 0 <= self.resident_percent < 100:
            raise InvalidInput("parking-resident", f"{self.resident_percent} is not a percentage from 1 to 99")
        if self.resident_percent and self.cards > 1:
            raise InvalidInput("parking-resident", f"it needs a lease of one card, and {self.cards} are asked for")
        if not 0 <= self.park_idle_seconds <= MOST_IDLE_SECONDS:
            raise InvalidInput("parking-idle", f"{self.park_idle_seconds:g} is not between 0 and {MOST_IDLE_SECONDS}")


def check_amounts(core: int, memory_mib: int) -> None:
    """Check the amounts. Raises InvalidInput for more than any card has."""
    if not 1 <= core <= 100:
        raise InvalidInput("core", f"{core} is not a share of one card; give 1 to 100 percent")
    if not 1 <= memory_mib <= names.MAX_MEMORY_MIB:
        raise InvalidInput("memory", f"{memory_mib} MiB is not between 1 and {names.MAX_MEMORY_MIB}")


def lease_name(key: str) -> str:
    """Return the name of the lease whose tokens are signed with `key`: a digest. The key proves that the lease was
    given to its bearer, and no other key makes the name."""
    return f"lease-{hashlib.sha256(f'lease {key}'.encode()).hexdigest()[:LEASE_NAME_DIGITS]}"


class LeaseIdentity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The parts of a lease that never change.

    `part` of `parts` says which ordinals this server's cards get; `key` signs the lease's tokens
    (`egpu.core.leasing.tokens`); `peer` is the authenticated caller that took it, `request` the caller's own number for
    that call. `park_idle_seconds`: the time without a call after which a lease that shares room counts as idle.
    """

    lease: str
    holder: str
    peer: str
    request: str
    key: str
    part: int
    parts: int
    park_idle_seconds: float = 0.0


class LeaseRecord(LeaseIdentity, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A lease on one server: enough for a restarted pool to know it again."""

    cards: tuple[CardShare, ...]
    """The limits in force; in an order, the new limits."""
    fit_by: float | None = None
    """Until when its program may use more than these (Unix time, seconds). The server only stores it."""
    place: int = 0
    """How often this part had moved when it came here: each place of a part has a number of its own."""
    gpu_seconds: float = 0.0
    """GPU time that it used at its earlier places."""

    @property
    def executor(self) -> str:
        """The name of its executor on its server, which may run those of two places at once."""
        return executor_name(self.lease, self.place)

    @property
    def shares_room(self) -> bool:
        """Whether memory of it may be parked for others."""
        return shares_room(self.cards)


def shares_room(cards: Iterable[CardShare]) -> bool:
    """Return whether only a part of this memory has its own room on the card."""
    return any(share.resident_mib for share in cards)


def executor_name(lease: str, place: int) -> str:
    """Return the name of the executor of a lease at its place of this number."""
    return f"{lease}-{place}" if place else lease


class MoveRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An order to two servers: the sessions of a lease leave `source` for its executor of number `place` on `target`,
    whose listener is at `address`. The source shows the `token` there, once; "": nothing may arrive any more."""

    lease: str
    place: int
    source: str
    target: str
    address: str
    token: str


class LookRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An order to find out, without stopping anything, whether a lease can move. `number` identifies the question."""

    lease: str
    number: int


class Departure(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The progress of a move, from its source. `place`: the number of the new place.

    "unsure": a daemon that has just started does not know yet. "refused": the program goes on here, and nothing will
    leave for that place any more. "left": it runs here no more. `hindrance`: True if something in the program prevents
    it. `paused_ns`: from the order to stop until all was restored elsewhere.
    """

    place: int
    state: Literal["unsure", "going", "refused", "left"]
    why: str = ""
    hindrance: bool = False
    bytes: int = 0
    paused_ns: int = 0


class Look(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to a LookRecord. `prevents`: what prevents a move, in words."""

    number: int
    bytes: int = 0
    prevents: tuple[str, ...] = ()


class RunningLease(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A lease in a server's report. `occupied_mib` per card, in the record's order: the larger of limit and usage.
    `failure`: why its executor does not run (then the server has removed it). `over_limit`: it was terminated for
    exceeding its memory limit. `arriving`: by the server's orders this place is the target of a move, and not final."""

    record: LeaseRecord
    occupied_mib: tuple[int, ...]
    ready: bool = False
    failure: str = ""
    over_limit: bool = False
    used_mib: tuple[int, ...] = ()
    parked_mib: int = 0
    """How much of `used_mib` is in the server's own memory."""
    gpu_seconds: float = 0.0
    sessions: int = 0
    arriving: bool = False
    departure: Departure | None = None
    look: Look | None = None

    @property
    def left(self) -> bool:
        """True if its sessions have left this place for another."""
        return self.departure is not None and self.departure.state == "left"

    @property
    def departure_place(self) -> int:
        """The number of the place that it leaves for, or has left for; 0: none."""
        return 0 if self.departure is None else self.departure.place


@dataclass(frozen=True, kw_only=True)
class Report:
    """A server's report: its cards, what runs on them, and the last order that it had read before.

    `instance` is the daemon's run; `epoch` and `version` are those of the order, 0 for none.
    """

    server: str
    address: str
    host: str
    link_mbps: int
    instance: str
    cards: tuple[Card, ...]
    leases: tuple[RunningLease, ...]
    directory: str = ""
    """The server's directory of leases, where programs of the same machine find their executors' sockets."""
    epoch: str = ""
    version: int = 0
    confinement: str = ""
    """The confinement of its executors, in words."""
    collectives: bool = False
    """True if networks of its executors can be linked with those of other servers."""
    simulated: bool = False
    """True if its cards are simulated, and so take kernels only as PTX."""
    libraries: Mapping[str, str] = field(default_factory=dict[str, str])
    """NVIDIA's libraries that its executors find, name → version; "" where the version is not known."""
    movable: bool = False
    """True if leases can move from and to its cards."""
    cordoned: bool = False
    """True if an administrator keeps new leases off its cards."""
    parking_mib: int = 0
    """How much of its own memory parked leases may take."""
    thrashing: tuple[str, ...] = ()
    """The cards, by UUID, whose busy leases wait for each other most of the time."""
