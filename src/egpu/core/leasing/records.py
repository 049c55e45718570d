"""What is said about leases between programs, the pool and its servers, and kept beside their executors."""

import hashlib
from dataclasses import dataclass
from typing import Final

import msgspec

from egpu.api import names
from egpu.api.allocation import CardShare
from egpu.core.placement.cards import Card
from egpu.errors import InvalidInput

LEASE_NAME_DIGITS: Final = 20
"""Hexadecimal ones. Sockets are made below a directory of that name, and the kernel's paths to them are short."""


@dataclass(frozen=True, kw_only=True)
class LeaseRequest:
    """What somebody asks of the pool. `core` (percent) and `memory_mib` are per card; `host` is where the program runs
    (a machine's id, to prefer cards of the same machine)."""

    cards: int
    core: int
    memory_mib: int
    host: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.cards <= names.MAX_CARDS_PER_CONTAINER:
            raise InvalidInput("gpus", f"{self.cards} is not between 1 and {names.MAX_CARDS_PER_CONTAINER}")
        check_amounts(self.core, self.memory_mib)


def check_amounts(core: int, memory_mib: int) -> None:
    """Raises InvalidInput for what no card can have."""
    if not 1 <= core <= 100:
        raise InvalidInput("core", f"{core} is not a share of one card; give 1 to 100 percent")
    if not 1 <= memory_mib <= names.MAX_MEMORY_MIB:
        raise InvalidInput("memory", f"{memory_mib} MiB is not between 1 and {names.MAX_MEMORY_MIB}")


def lease_name(key: str) -> str:
    """The name of the lease whose tokens are signed with `key`: a digest, so that who brings the key shows that the
    lease was given to it, and no other key makes the name."""
    return f"lease-{hashlib.sha256(f'lease {key}'.encode()).hexdigest()[:LEASE_NAME_DIGITS]}"


class LeaseIdentity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which lease, and whose: what stays the same as long as it lives.

    `part` of `parts` says which ordinals this server's cards get; `key` signs the lease's tokens
    (`egpu.core.leasing.tokens`); `peer` is the authenticated caller that took it, `request` the caller's own number
    for that call.
    """

    lease: str
    holder: str
    peer: str
    request: str
    key: str
    part: int
    parts: int


class LeaseRecord(LeaseIdentity, frozen=True, kw_only=True, rename="camel"):
    """A lease on one server: enough for a pool that has just started to know it again."""

    cards: tuple[CardShare, ...]
    """The limits in force; in an order, the limits wanted."""
    fit_by: float | None = None
    """Until when its program may use more than these (Unix time, seconds). For the server it is only to be kept."""


class RunningLease(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One lease in a server's report. `occupied_mib` per card, in the record's order: the larger of the limit and what
    is used. `failure` is why its executor does not run (then the server has removed it); `over_limit`: it was ended
    because it held more memory than it may."""

    record: LeaseRecord
    occupied_mib: tuple[int, ...]
    ready: bool = False
    failure: str = ""
    over_limit: bool = False
    used_mib: tuple[int, ...] = ()
    gpu_seconds: float = 0.0
    sessions: int = 0


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a server says: its cards, what runs on them, and the last order that it had read when it wrote this.

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
    """Where the server keeps its leases: a program of the same machine finds its executor's socket there."""
    epoch: str = ""
    version: int = 0
    confinement: str = ""
    """What holds its executors, in words."""
    collectives: bool = False
    """Whether networks of its executors can be linked with those of other servers."""
    simulated: bool = False
    """Whether its cards are, and so take kernels as PTX alone."""
