"""The pool's decisions: who gets which cards of which server, for how long, and when they are free again. No I/O, no
clock (every call brings `now`, in seconds of one monotonic clock).

What is *wanted* is what the pool decided; what is *occupied* is what a server last said that it runs. A card counts as
held by the larger of the two. So a slice is taken from the moment it is granted until its server has said that nothing
of it runs any more, growing counts at once, and shrinking counts when the memory has really been given back. A report
counts as saying that something is *gone* only when the server had read the order to end it: otherwise it may be about
to start it.

The state is rebuilt from the servers' reports: they run the executors, and keep beside each the lease it belongs to, so
there is no second copy that could disagree with them. Cards come to the pool in the same report as the leases on them,
so nothing can be given out twice while the pool still learns.

    granted ──► active ──► ending ──► (forgotten)
       └────────────────────┘▲
                 released, revoked, expired, failed

A lease ends when its holder says so, when the holder's connection closes and is not back within RECONNECT_SECONDS (the
kernel of a killed process closes it at once), when nobody renews it for TTL_SECONDS (a network that says nothing), or
when its server stays away for SERVER_GRACE_SECONDS.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, ContainerDemand, PodAllocation, PodDemand
from egpu.core.placement.fit import fits
from egpu.core.placement.hosts import Hosts
from egpu.core.placement.ledger import Card, Holder, Ledger, NodeCards
from egpu.core.placement.ranking import Ranking
from egpu.core.placement.refusal import refusal
from egpu.core.placement.requests import Request
from egpu.core.policies.registry import Policies
from egpu.errors import DoesNotFit, InvalidInput, NotFound, Refused, Unavailable

TTL_SECONDS: Final = 30.0
"""How long a lease lives without a renewal: a network may be silent for this long."""
RECONNECT_SECONDS: Final = 1.0
"""How long a holder whose connection was closed may take to come back."""
SERVER_GRACE_SECONDS: Final = 30.0
"""How long a server may be away before its leases are lost. Its cards are not given out meanwhile, nor afterwards until
it reports again."""
MAX_LEASES: Final = 16_384
MAX_LEASES_PER_HOLDER: Final = 64
MAX_SERVERS: Final = 1024
MAX_PARTS: Final = 8
"""Servers one lease may span: what a client library connects to."""
MAX_TOMBSTONES: Final = 4096
"""Ended leases that are remembered, so that a server that comes back late is told to end them."""
OVER_LIMIT: Final = "over_limit: it used more memory than it was shrunk to, and its time to give it back was over"
_CONTAINER: Final = "lease"

State = Literal["granted", "active", "ending"]


@dataclass(frozen=True, kw_only=True)
class Wish:
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


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a server keeps beside an executor: enough for a pool that has just started to know the lease again.

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
    cards: tuple[CardShare, ...]
    """The limits in force; in an order, the limits wanted."""
    fit_by: float | None = None
    """Until when its program may use more than these (Unix time, seconds). For the server it is only to be kept."""


class RunningLease(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One lease in a server's report. `occupied_mib` per card, in the record's order: the larger of the limit and what
    is used. `failure` is why its executor does not run (then the server has removed it)."""

    record: LeaseRecord
    occupied_mib: tuple[int, ...]
    ready: bool = False
    failure: str = ""
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


@dataclass(frozen=True)
class Part:
    """The share of a lease on one server. `wanted` is empty once it is to end; `ordered` is the version of the order
    that last changed it."""

    wanted: tuple[CardShare, ...]
    ordered: int
    running: RunningLease | None = None


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
    reason: str = ""
    fit_by: float | None = None
    """When it ends if it still uses more memory than it was shrunk to (Unix time, seconds); None: it is given all the
    time it needs."""

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self.parts)

    @property
    def cards(self) -> tuple[tuple[str, CardShare], ...]:
        """(server, share) in the order of the ordinals."""
        return tuple((server, share) for server, part in self.parts.items() for share in part.wanted)

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


@dataclass
class Server:
    """A server as the pool knows it. `away_since` None: it is connected. `version` is that of its orders."""

    name: str
    address: str
    host: str
    link_mbps: int
    instance: str
    cards: tuple[Card, ...]
    directory: str = ""
    confinement: str = ""
    away_since: float | None = None
    version: int = 0
    leases: set[str] = field(default_factory=set[str])


class Pool:
    """All leases over all servers. Not thread-safe: its owner calls from one loop.

    `changed` collects the servers whose orders changed, and `touched` the leases that did, since the owner last cleared
    them: it sends the orders, and tells whoever waits for a lease.

    `unix_at_zero` is the Unix time at which `now` was 0: what must hold over a restart is said by that clock. It is
    read once, so setting the clock moves nothing while this pool runs.
    """

    def __init__(self, epoch: str, policies: Policies | None = None, *, unix_at_zero: float = 0.0) -> None:
        self.epoch = epoch
        self.unix_at_zero = unix_at_zero
        self.ledger = Ledger()
        self.leases: dict[str, Lease] = {}
        self.servers: dict[str, Server] = {}
        self.changed: set[str] = set()
        self.touched: set[str] = set()
        self.ranking = Ranking(self.ledger, Hosts())
        self._policies = policies or Policies.named()
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._by_request: dict[tuple[str, str], str] = {}
        self._per_holder: dict[str, int] = {}

    # --- what clients ask ---------------------------------------------------------------------------------------------

    def grant(self, wish: Wish, *, lease: str, key: str, holder: str, peer: str, request: str, now: float) -> Lease:
        """Reserve what `wish` asks, under the new id `lease`. The same `request` of the same peer again gives the lease
        that it got the first time (an answer may have been lost).

        Raises:
            DoesNotFit: no place now; the message says what each server lacks.
            Unavailable: the same, but a server is away and may be back at any moment: ask again.
            Refused: the holder has too many leases, or the pool has.
        """
        known = self.leases.get(self._by_request.get((peer, request), ""))
        if known is not None and known.state != "ending":
            return known
        if len(self.leases) >= MAX_LEASES:
            raise Refused(f"the pool has {MAX_LEASES} leases, its bound; release some, or run another pool")
        if self._per_holder.get(holder, 0) >= MAX_LEASES_PER_HOLDER:
            raise Refused(f"{holder} has {MAX_LEASES_PER_HOLDER} leases, the most that one holder may have")
        self.ranking.see(f"{peer}/{request}", _request(wish, wish.cards))
        parts: dict[str, Part] = {}
        for server, shares in self._place(wish).items():
            parts[server] = Part(shares, self._next_version(server))
        made = Lease(
            id=lease, holder=holder, peer=peer, request=request, key=key, state="granted", parts=parts,
            expected_parts=len(parts), deadline=now + TTL_SECONDS,
        )  # fmt: skip
        self._add(made)
        return made

    def renew(self, lease: str, now: float) -> Lease:
        """The holder lives. Raises NotFound for a lease that is not there or is ending."""
        found = self._live(lease)
        renewed = replace(found, deadline=now + TTL_SECONDS)
        self.leases[lease] = renewed
        return renewed

    def let_go(self, lease: str, now: float) -> None:
        """The holder's connection was closed: it has RECONNECT_SECONDS to renew."""
        found = self.leases.get(lease)
        if found is not None and found.state != "ending":
            self.leases[lease] = replace(found, deadline=min(found.deadline, now + RECONNECT_SECONDS))

    def resize(
        self, lease: str, *, core: int | None = None, memory_mib: int | None = None, fit_by: float | None = None
    ) -> Lease:
        """Other limits for every card of a live lease; None keeps what it has. Who uses more memory than that gets no
        more, and its lease is ended at `fit_by` (by the clock of `now`) if it still does then.

        Raises:
            NotFound: no such lease.
            InvalidInput: no card can have that.
            DoesNotFit: a card has not that much free; nothing was changed.
        """
        found = self._live(lease)
        wanted = {
            server: tuple(_resized(share, core, memory_mib) for share in part.wanted)
            for server, part in found.parts.items()
        }
        for server, shares in wanted.items():
            self._check_room(found, server, shares)
        keep_by = None if fit_by is None else self.unix_at_zero + fit_by
        other = keep_by != found.fit_by
        found = replace(found, fit_by=keep_by)
        for server, shares in wanted.items():
            if other or shares != found.parts[server].wanted:
                found = self._with_part(found, server, replace(found.parts[server], wanted=shares), order=True)
        self.leases[lease] = found
        return found

    def end(self, lease: str, reason: str) -> None:
        """Release, revoke or expire; nothing happens when it is ending already, or is not there."""
        found = self.leases.get(lease)
        if found is None or found.state == "ending":
            return
        ending = replace(found, state="ending", reason=reason)
        for server, part in found.parts.items():
            ending = self._with_part(ending, server, replace(part, wanted=()), order=True)
        self.leases[lease] = ending
        self.touched.add(lease)
        self._bury(lease, reason)

    def why_ended(self, lease: str) -> str:
        """Why a lease that is not there any more ended; "" when nobody remembers it."""
        return self._ended.get(lease, "")

    # --- what servers say ---------------------------------------------------------------------------------------------

    def report(self, report: Report, now: float) -> None:
        """A server's report. Adopts leases that this pool does not know (it was restarted), ends those that it knows to
        have ended, and forgets parts that are gone. Raises Refused beyond MAX_SERVERS."""
        server = self.servers.get(report.server)
        if server is None:
            if len(self.servers) >= MAX_SERVERS:
                raise Refused(f"the pool has {MAX_SERVERS} servers, its bound")
            server = self.servers[report.server] = Server(
                report.server,
                report.address,
                report.host,
                report.link_mbps,
                report.instance,
                report.cards,
                report.directory,
            )
            self.changed.add(server.name)
        if server.away_since is not None or server.instance != report.instance:
            self.changed.add(server.name)  # orders that were on their way are lost
        server.address, server.host, server.link_mbps = report.address, report.host, report.link_mbps
        server.instance, server.cards, server.away_since = report.instance, report.cards, None
        server.directory, server.confinement = report.directory, report.confinement
        read = report.version if report.epoch == self.epoch else 0
        running = {one.record.lease: one for one in report.leases}
        # Leases before cards: at no moment is a card known and what runs on it not.
        for lease, one in running.items():
            self._running(server, lease, one, now)
        for lease in server.leases - running.keys():
            self._absent(server, lease, read)
        self.ledger.set_node(NodeCards(server.name, server.cards))

    def server_away(self, name: str, now: float) -> None:
        """The connection of a server was closed: nothing new is put there until it reports again."""
        server = self.servers.get(name)
        if server is not None and server.away_since is None:
            server.away_since = now
            self.ledger.set_node(NodeCards(name, tuple(replace(card, healthy=False) for card in server.cards)))

    def orders(self, server: str) -> tuple[int, tuple[LeaseRecord, ...]]:
        """(version, everything that shall run on `server`): what is not in it shall end."""
        known = self.servers[server]
        records: list[LeaseRecord] = []
        for lease in sorted(known.leases):
            found = self.leases[lease]
            part = found.parts[server]
            if part.wanted:
                records.append(_record(found, server, part.wanted))
        return known.version, tuple(records)

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """End what nobody renewed, and give up servers that stay away. Call it several times a second."""
        for lease in [one.id for one in self.leases.values() if one.state != "ending" and one.deadline <= now]:
            self.end(lease, "its holder was not heard of")
        unix = self.unix_at_zero + now
        for found in [one for one in self.leases.values() if one.fit_by is not None and one.fit_by <= unix]:
            if found.shrunk and found.over_limit:
                self.end(found.id, OVER_LIMIT)
            elif found.shrunk and found.state == "active":
                self._kept_its_deadline(found)
        for server in list(self.servers.values()):
            if server.away_since is not None and now - server.away_since >= SERVER_GRACE_SECONDS:
                self._forget_server(server)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _kept_its_deadline(self, lease: Lease) -> None:
        """It gave back in time, so the deadline is over, and the servers are told: one that was kept would hold for
        what the program does later."""
        kept = replace(lease, fit_by=None)
        for server, part in lease.parts.items():
            kept = self._with_part(kept, server, part, order=True)
        self.leases[lease.id] = kept

    def _live(self, lease: str) -> Lease:
        found = self.leases.get(lease)
        if found is None or found.state == "ending":
            reason = self.why_ended(lease)
            raise NotFound(f"there is no lease {lease}" + (f": it ended, {reason}" if reason else ""))
        return found

    def _place(self, wish: Wish) -> dict[str, tuple[CardShare, ...]]:
        """Shares by server: all on one server where that is possible, otherwise on as few as the order gives.

        Order: the program's own machine, then the fastest link, then as the policy ranks them.
        """
        here = [server for server in self.servers.values() if server.away_since is None]
        if roomy := self._best_first(wish, wish.cards, here):
            return {roomy[0].name: self._shares(wish, wish.cards, roomy[0].name)}
        placed: dict[str, tuple[CardShare, ...]] = {}
        left = wish.cards
        for server in self._best_first(wish, 1, here):
            for count in range(min(left, len(server.cards)), 0, -1):
                if len(placed) < MAX_PARTS and fits(_request(wish, count), self.ledger, [server.name])[0]:
                    placed[server.name] = self._shares(wish, count, server.name)
                    left -= count
                    break
            if not left:
                return placed
        if away := sorted(server.name for server in self.servers.values() if server.away_since is not None):
            raise Unavailable(f"{self._refusal(wish, here)}; {', '.join(away[:8])} may be back in a moment")
        raise DoesNotFit(self._refusal(wish, here))

    def _best_first(self, wish: Wish, cards: int, servers: Sequence[Server]) -> list[Server]:
        """Of the servers those that have room for so many of the cards, best first."""
        request = _request(wish, cards)
        mask = fits(request, self.ledger, [server.name for server in servers])
        roomy = [server for server, ok in zip(servers, mask.tolist(), strict=True) if ok]
        scores = self.ranking.scores(request, [server.name for server in roomy], self._policies, all_fit=True)

        def order(server: Server) -> tuple[bool, int, float, str]:
            return (not wish.host or server.host != wish.host, -server.link_mbps, -scores[server.name], server.name)

        return sorted(roomy, key=order)

    def _shares(self, wish: Wish, cards: int, server: str) -> tuple[CardShare, ...]:
        return self.ranking.choose(_request(wish, cards), server, self._policies).containers[_CONTAINER].cards

    def _refusal(self, wish: Wish, servers: Sequence[Server]) -> str:
        if not servers:
            return "no server is connected to this pool now"
        reasons = [
            f"{server.name}: {refusal(_request(wish, 1), self.ledger, server.name).text()}"
            if not fits(_request(wish, 1), self.ledger, [server.name])[0]
            else f"{server.name}: has room for some of the cards, not for all"
            for server in servers[:8]
        ]
        more = f"; and {len(servers) - 8} servers more" if len(servers) > 8 else ""
        asked = f"{wish.cards} × {wish.core} % and {wish.memory_mib} MiB"
        return f"no place for {asked} now: " + "; ".join(reasons) + more

    def _check_room(self, lease: Lease, server: str, shares: tuple[CardShare, ...]) -> None:
        row = self.ledger.row(server)
        cards = {card.uuid: column for column, card in enumerate(self.ledger.cards(server))}
        held = {share.uuid: share for share in _held(lease.parts[server])}
        for share in shares:
            if row is None or share.uuid not in cards:
                raise DoesNotFit(f"card {share.uuid} of {server} is away; try again when it is back")
            cell = (row, cards[share.uuid])
            now = held[share.uuid]
            core = int(self.ledger.core_free[cell]) + now.core
            memory_mib = int(self.ledger.memory_free[cell]) + now.memory_mib
            if share.core > core or share.memory_mib > memory_mib:
                raise DoesNotFit(
                    f"card {share.index} of {server} has {core} % and {memory_mib} MiB for this lease, "
                    f"{share.core} % and {share.memory_mib} MiB are asked for"
                )

    def _running(self, server: Server, lease: str, one: RunningLease, now: float) -> None:
        found = self.leases.get(lease)
        if found is None:
            found = self._adopted(server, one.record, now)
        part = found.parts.get(server.name)
        if part is not None and part.running == one:
            return
        self.touched.add(lease)
        if part is None:
            part = Part((), self._next_version(server.name))
            if found.state != "ending":
                part = replace(part, wanted=one.record.cards)
                found = replace(found, fit_by=_sooner(found.fit_by, one.record.fit_by))
        found = self._with_part(found, server.name, replace(part, running=one))
        if (
            found.state == "granted"
            and len(found.parts) == found.expected_parts
            and all(each.running is not None and each.running.ready for each in found.parts.values())
        ):
            found = replace(found, state="active")
        self.leases[lease] = found
        if one.failure:
            self.end(lease, one.failure)

    def _adopted(self, server: Server, record: LeaseRecord, now: float) -> Lease:
        """A lease that only its server knows: of the time before this pool started, or ended while it was away."""
        ended = self._ended.get(record.lease)
        adopted = Lease(
            id=record.lease, holder=record.holder, peer=record.peer, request=record.request, key=record.key,
            state="granted" if ended is None else "ending", parts={}, expected_parts=record.parts,
            deadline=now + TTL_SECONDS, reason=ended or "",
        )  # fmt: skip
        self._add(adopted)
        if ended is not None:
            self.changed.add(server.name)
        return adopted

    def _absent(self, server: Server, lease: str, read: int) -> None:
        """The server does not run a part (any more). Believed only of what it had read the order for."""
        found = self.leases[lease]
        part = found.parts[server.name]
        if read < part.ordered:
            return
        if part.wanted:
            # The order changes with this: only a report made after it is believed to say that nothing runs.
            self.end(lease, f"its executor on {server.name} is gone")
            return
        self._drop_part(found, server)

    def _forget_server(self, server: Server) -> None:
        for lease in list(server.leases):
            self.end(lease, f"server {server.name} was away for {SERVER_GRACE_SECONDS:g} s")
            if lease in self.leases:
                self._drop_part(self.leases[lease], server)
        del self.servers[server.name]
        self.ledger.remove_node(server.name)
        self.changed.discard(server.name)

    def _drop_part(self, lease: Lease, server: Server) -> None:
        self.touched.add(lease.id)
        self.ledger.release(_holder(lease.id, server.name))
        server.leases.discard(lease.id)
        parts = {name: part for name, part in lease.parts.items() if name != server.name}
        if parts:
            self.leases[lease.id] = replace(lease, parts=parts)
            return
        del self.leases[lease.id]
        if self._by_request.get((lease.peer, lease.request)) == lease.id:
            del self._by_request[lease.peer, lease.request]
        self._per_holder[lease.holder] -= 1
        if not self._per_holder[lease.holder]:
            del self._per_holder[lease.holder]

    def _add(self, lease: Lease) -> None:
        self.leases[lease.id] = lease
        self._by_request[lease.peer, lease.request] = lease.id
        self._per_holder[lease.holder] = self._per_holder.get(lease.holder, 0) + 1
        for server, part in lease.parts.items():
            self._hold(lease, server, part)

    def _with_part(self, lease: Lease, server: str, part: Part, *, order: bool = False) -> Lease:
        """`lease` with this part; the ledger holds what it takes. `order`: the server has to be told."""
        if order:
            part = replace(part, ordered=self._next_version(server))
        self._hold(lease, server, part)
        return replace(lease, parts=_in_order(lease.parts, server, part))

    def _hold(self, lease: Lease, server: str, part: Part) -> None:
        known = self.servers.get(server)
        if known is None:
            return
        known.leases.add(lease.id)
        shares = _held(part)
        holder = _holder(lease.id, server)
        if shares:
            granted = ContainerAllocation(provisioner=names.QGPU, mode="shared", cards=shares)
            self.ledger.hold(holder, PodAllocation(node=server, containers={_CONTAINER: granted}))

    def _next_version(self, server: str) -> int:
        known = self.servers.get(server)
        if known is None:
            return 0
        known.version += 1
        self.changed.add(server)
        return known.version

    def _bury(self, lease: str, reason: str) -> None:
        self._ended[lease] = reason
        self._ended.move_to_end(lease)
        while len(self._ended) > MAX_TOMBSTONES:
            self._ended.popitem(last=False)


def _request(wish: Wish, cards: int) -> Request:
    # Each server is asked for its own cards, as a node is for a container beside them.
    demand = ContainerDemand(provisioner=names.QGPU, cards=cards, core=wish.core, memory_mib=wish.memory_mib)
    return Request(PodDemand(containers={_CONTAINER: demand}))


def _holder(lease: str, server: str) -> Holder:
    return Holder("lease", f"{lease}@{server}")


def _held(part: Part) -> tuple[CardShare, ...]:
    """What the part takes of its cards: the larger of what is wanted and what its server says that it occupies."""
    held = {share.uuid: share for share in part.wanted}
    if part.running is not None:
        running = part.running
        for share, occupied in zip(running.record.cards, running.occupied_mib, strict=False):
            wanted = held.get(share.uuid)
            held[share.uuid] = msgspec.structs.replace(
                share,
                core=max(share.core, wanted.core if wanted else 0),
                memory_mib=max(share.memory_mib, occupied, wanted.memory_mib if wanted else 0),
            )
    return tuple(held.values())


def _in_order(parts: Mapping[str, Part], server: str, part: Part) -> dict[str, Part]:
    """By the number of the part where the servers say it: after a restart they report in any order."""
    merged = {**parts, server: part}

    def number(entry: tuple[int, tuple[str, Part]]) -> tuple[int, int]:
        place, (_, each) = entry
        return (each.running.record.part if each.running is not None else place, place)

    return dict(entry for _, entry in sorted(enumerate(merged.items()), key=number))


def _record(lease: Lease, server: str, shares: tuple[CardShare, ...]) -> LeaseRecord:
    running = lease.parts[server].running
    return LeaseRecord(
        lease=lease.id, holder=lease.holder, peer=lease.peer, request=lease.request, key=lease.key,
        part=running.record.part if running is not None else lease.servers.index(server),
        parts=lease.expected_parts, cards=shares, fit_by=lease.fit_by,
    )  # fmt: skip


def _sooner(one: float | None, other: float | None) -> float | None:
    """The first of two deadlines, of which there may be none."""
    return other if one is None else one if other is None else min(one, other)


def _resized(share: CardShare, core: int | None, memory_mib: int | None) -> CardShare:
    changed = msgspec.structs.replace(
        share,
        core=share.core if core is None else core,
        memory_mib=share.memory_mib if memory_mib is None else memory_mib,
    )
    check_amounts(changed.core, changed.memory_mib)
    return changed


def total(cards: Iterable[CardShare]) -> tuple[int, int]:
    """(percent, MiB) of all shares together."""
    listed = list(cards)
    return sum(share.core for share in listed), sum(share.memory_mib for share in listed)
