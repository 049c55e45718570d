"""Messages between broker, servers and programs: JSON in frames (`egpu.adapters.pool.connection`).

program → broker    Hello(client)  then  Acquire, Attach, Renew, Resize, Move, Cordon, Release, ListLeases, ListServers
broker → program    Welcome or Rejected, then an answer with the number of each request, and Ended at any time;
                    to a program that follows moves also Moved
server → broker     Hello(server)  then  Reported, again and again
broker → server     Welcome or Rejected, then Orders whenever they change
program → server    Hello(data), Welcome or Rejected, then the bytes of the program and its executor
server → server     Hello(link), Welcome or Rejected, then packets of a caller's networks (`native/link/main.c`)
server → server     Hello(move), Welcome or Rejected, then the sessions of a lease (`egpu.apps.serve.departures`)
agent → agent       Hello(pod), Welcome or Rejected, then Open, once; and data as a program's

Without TLS every Hello has a Challenge and a Proof before it (`egpu.adapters.pool.proof`).
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from egpu.api.allocation import CardShare
from egpu.core.leasing.links import LinkRecord
from egpu.core.leasing.records import LeaseRecord, Look, LookRecord, MoveRecord, Report
from egpu_base.errors import CorruptData

VERSION: Final = 2
SERVER_SILENCE_SECONDS: Final = 5.0
"""A server is away after this time without a message to the broker."""
Cards = Literal["", "gathering", "none", "real", "simulated", "mixed"]
"""The kind of cards in a pool. "gathering": none yet, the broker has just started; "": not told."""


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag=True):
    """A message. Unknown fields are ignored, so that a newer peer can send more; an unknown message is an error."""


class Challenge(Message, frozen=True, kw_only=True):
    """The first message of a connection without TLS: prove that you know the secret. `nonce` is used once."""

    nonce: str


class Proof(Message, frozen=True, kw_only=True):
    """The answer to a Challenge, with a `nonce` for the caller's own proof."""

    nonce: str
    digest: str


class Hello(Message, frozen=True, kw_only=True):
    """The caller and its purpose. `proof` is for authentication by the pool's shared secret; `instance` identifies the
    run of a server; `lease`, `token` and `place` are for data and moves; `caller` is the owner of the networks to link.
    `follows`: a program that connects to another server when it gets Moved."""

    version: int = VERSION
    role: str
    name: str = ""
    proof: str = ""
    instance: str = ""
    lease: str = ""
    token: str = ""
    caller: str = ""
    place: int | None = None
    follows: bool = False


class Welcome(Message, frozen=True, kw_only=True):
    """The answer to a Hello. `name` is our name for the caller. `cards` is the target of a program's compilers.
    `moves`: a broker that knows moves."""

    name: str
    epoch: str = ""
    cards: Cards = ""
    moves: bool = False


class Rejected(Message, frozen=True, kw_only=True):
    """A refusal; the connection is closed after it. `retryable`: a later try may succeed. `kind` is the name of the
    error in `egpu_base.errors`."""

    reason: str
    retryable: bool = False
    kind: str = ""


class Acquire(Message, frozen=True, kw_only=True):
    """Ask for a lease; answered with Granted once the executors run. `request` makes repeating harmless."""

    number: int
    request: str
    holder: str
    cards: int
    core: int
    memory_mib: int
    host: str = ""
    resident_percent: int = 0
    park_idle_seconds: float = 0.0


class Attach(Message, frozen=True, kw_only=True):
    """Use this connection for a lease whose connection broke. Answered with Granted."""

    number: int
    lease: str


class Renew(Message, frozen=True, kw_only=True):
    """Ask for a fresh token. Answered with Granted."""

    number: int
    lease: str


class Resize(Message, frozen=True, kw_only=True):
    """Ask for other limits; answered with Granted once they are in force. `within_seconds`: how long the program may go
    on using more memory; None: as long as it likes."""

    number: int
    lease: str
    core: int | None = None
    memory_mib: int | None = None
    within_seconds: float | None = None


class Move(Message, frozen=True, kw_only=True):
    """Ask for other cards: the part of the lease on `source`, if it has several, moves to `server` and its `card`, or
    to the best place. Answered with Arrived. `check`: find out what prevents it, and stop nothing; answered with
    Movable."""

    number: int
    lease: str
    source: str = ""
    server: str = ""
    card: str = ""
    check: bool = False


class Cordon(Message, frozen=True, kw_only=True):
    """Keep new leases off the cards of a server, or allow them again. Answered with Done."""

    number: int
    server: str
    cordoned: bool


class Release(Message, frozen=True, kw_only=True):
    """End a lease. Answered with Done."""

    number: int
    lease: str
    reason: str = "released"


class Open(Message, frozen=True, kw_only=True):
    """Ask, as the node of a pod, the node with its cards for the container's executor. Answered with Granted."""

    number: int
    namespace: str
    pod: str
    uid: str
    container: str


class ListLeases(Message, frozen=True, kw_only=True):
    """Ask for all leases. Answered with Leases."""

    number: int


class ListServers(Message, frozen=True, kw_only=True):
    """Ask for all servers. Answered with Servers."""

    number: int


class CardView(Message, frozen=True, kw_only=True):
    """One card of a lease, in the order of the ordinals. `used_mib` is None until the server has reported it;
    `parked_mib` of it are not on the card."""

    server: str
    share: CardShare
    used_mib: int | None = None
    parked_mib: int = 0


class PartView(Message, frozen=True, kw_only=True):
    """The location of a part of a lease. `socket`: the executor's, for programs of the same machine."""

    server: str
    address: str
    host: str
    socket: str
    cards: int
    libraries: Mapping[str, str] = {}
    """NVIDIA's libraries of its server, name → version."""
    place: int | None = None
    """The number of the place, for its server; None from a broker that knows no moves."""
    part: int = -1
    """The number of the part; -1: not told."""


class LeaseView(Message, frozen=True, kw_only=True):
    """A lease as its holder and people see it, without secrets."""

    lease: str
    holder: str
    peer: str
    state: str
    cards: tuple[CardView, ...]
    parts: tuple[PartView, ...]
    over_limit: bool = False
    gpu_seconds: float = 0.0
    sessions: int = 0
    moving: str = ""
    """The server that it is moving to."""


class ServerView(Message, frozen=True, kw_only=True):
    """A server as people see it. Percent and MiB over all its cards."""

    server: str
    address: str
    host: str
    link_mbps: int
    connected: bool
    cards: int
    leases: int
    core: int
    core_free: int
    memory_mib: int
    memory_free_mib: int
    confinement: str = ""
    """The confinement of its executors, in words."""
    libraries: Mapping[str, str] = {}
    """NVIDIA's libraries that its executors find, name → version; "" where it is not known."""
    cordoned: bool = False
    movable: bool = False
    parking_mib: int = 0
    """How much of its own memory parked leases may take."""
    parking_free_mib: int = 0
    parked_mib: int = 0
    """How much of its leases' memory is parked now."""
    thrashing: tuple[str, ...] = ()
    """The cards, by UUID, whose busy leases wait for each other most of the time."""


class Granted(Message, frozen=True, kw_only=True):
    """A granted lease. `token` opens the executors for about a minute: renew in time."""

    number: int
    lease: LeaseView
    token: str = ""


class Moved(Message, frozen=True, kw_only=True):
    """A lease of this connection is elsewhere now; its sessions wait there. `token` as in Granted."""

    lease: LeaseView
    token: str


class Arrived(Message, frozen=True, kw_only=True):
    """A lease has moved. `paused_ns`: the time in which nothing of it ran."""

    number: int
    lease: LeaseView
    bytes: int
    paused_ns: int


class Movable(Message, frozen=True, kw_only=True):
    """What prevents a move of a lease, and how much it would move."""

    number: int
    look: Look


class Done(Message, frozen=True, kw_only=True):
    number: int


class Failed(Message, frozen=True, kw_only=True):
    """A failed request. `kind` is the name of the error in `egpu_base.errors`."""

    number: int
    kind: str
    reason: str


class Leases(Message, frozen=True, kw_only=True):
    number: int
    leases: tuple[LeaseView, ...]


class Servers(Message, frozen=True, kw_only=True):
    number: int
    servers: tuple[ServerView, ...]


class Ended(Message, frozen=True, kw_only=True):
    """A lease of this connection ended, without its holder's request."""

    lease: str
    reason: str


class Reported(Message, frozen=True, kw_only=True):
    report: Report


class Orders(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that shall run on the server, and the servers to link its networks with; the rest shall end. But links
    stay while the broker is not `settled`: their callers may not have contacted it yet. `moves` are those from and to
    the server; others are cancelled. `cordon`: whether new leases are kept off its cards; None: as it is."""

    epoch: str
    version: int
    leases: tuple[LeaseRecord, ...]
    links: tuple[LinkRecord, ...] = ()
    settled: bool = True
    moves: tuple[MoveRecord, ...] = ()
    looks: tuple[LookRecord, ...] = ()
    cordon: bool | None = None


Request = Acquire | Attach | Renew | Resize | Move | Cordon | Release | Open | ListLeases | ListServers
AnyMessage = (
    Challenge | Proof | Hello | Welcome | Rejected | Request
    | Granted | Moved | Arrived | Movable | Done | Failed | Leases | Servers | Ended | Reported | Orders
)  # fmt: skip

_decoder = msgspec.json.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    return msgspec.json.encode(message)


def decode(data: bytes) -> AnyMessage:
    """Decode a message. Raises CorruptData for an invalid one."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptData(f"not a message of the pool: {error}") from error
