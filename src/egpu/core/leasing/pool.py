"""The pool's decisions: which program gets which cards of which server, for how long, and when they are free again. No
I/O, no clock (every call passes `now`, in seconds of one monotonic clock).

The state is rebuilt from the servers' reports. Servers run the executors and store the lease of each beside it, so no
second copy can disagree.

A lease ends when its holder says so, when the holder's connection closes and is not back within RECONNECT_SECONDS (the
kernel of a killed process closes it at once), when it is not renewed for TTL_SECONDS (a silent network), or when its
server stays away for SERVER_GRACE_SECONDS.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerDemand, PodDemand
from egpu.core.leasing import moves, reports
from egpu.core.leasing.belief import MAX_PARTS
from egpu.core.leasing.links import LinkRecord, links
from egpu.core.leasing.records import LeaseRecord, LeaseRequest, LookRecord, MoveRecord, Report, check_amounts
from egpu.core.leasing.state import Lease, Part, Server
from egpu.core.leasing.table import CONTAINER, LeaseTable
from egpu.core.leasing.targets import Targets
from egpu.core.placement.cards import NodeCards
from egpu.core.placement.fit import fits
from egpu.core.placement.hosts import Hosts
from egpu.core.placement.ranking import Ranking
from egpu.core.placement.refusal import Refusal, refusal
from egpu.core.placement.requests import Request
from egpu.core.policies.registry import Policies
from egpu_base.errors import DoesNotFit, NotFound, NotSupported, Refused, TooSoon, Unavailable

TTL_SECONDS: Final = 30.0
"""The life of a lease without a renewal: a network may be silent for this long."""
RECONNECT_SECONDS: Final = 1.0
"""The time for a holder to return after its connection was closed."""
SERVER_GRACE_SECONDS: Final = 30.0
"""Seconds that a server may be away before its leases are lost. Its cards are not used until it reports again."""
MAX_LEASES: Final = 16_384
MAX_LEASES_PER_HOLDER: Final = 64
"""Per caller: callers choose their holders' names, and equal names of other callers are other holders."""
MAX_LEASES_PER_PEER: Final = 4096
"""A part of the pool's maximum, so that one caller cannot use up all of it."""
MAX_SERVERS_IN_TEXT: Final = 3
MAX_CARDS_IN_TEXT: Final = 2
"""Servers, and cards of each, that a refusal names: it is one line of a terminal, or two."""
OVER_LIMIT: Final = "over_limit: it used more memory than its reduced limit, and the time to release it was over"


class Pool(LeaseTable):
    """All leases over all servers. Not thread-safe: its owner calls from one loop, and after each call sends the orders
    of the servers in `changed`, notifies the waiters of the leases in `touched`, and clears both.

    `unix_at_zero` is the Unix time at which `now` was 0, for deadlines that outlive a restart. It is read once, so
    setting the clock changes nothing while this pool runs.
    """

    def __init__(self, epoch: str, policies: Policies | None = None, *, unix_at_zero: float = 0.0) -> None:
        super().__init__()
        self.epoch = epoch
        self.unix_at_zero = unix_at_zero
        self.ranking = Ranking(self.ledger, Hosts())
        self._links: dict[str, tuple[LinkRecord, ...]] = {}
        self._policies = policies or Policies.named()
        self._targets = Targets(self, self.ranking, self._policies)

    # --- what holders ask ---------------------------------------------------------------------------------------------

    def grant(
        self, asked: LeaseRequest, *, lease: str, key: str, holder: str, peer: str, request: str, now: float
    ) -> Lease:
        """Reserve the requested cards, under the new id `lease`. Repeating a `request` of the same peer returns the
        same lease (an answer may have been lost), unless the broker was restarted before every server had its order:
        no program can have used that lease, and nobody knows its other cards, so it ends.

        Raises:
            DoesNotFit: no room now; the message says what each server lacks.
            Unavailable: no room now, but a server is away, or the request's earlier lease is ending: ask again.
            Refused: the holder has too many leases, or the pool has.
            TooSoon: a lease of the same peer was ended for an overrun a moment ago.
        """
        if (known := self.of_request(peer, request)) is not None and known.lacks_parts:
            self.end(known.id, "the broker was restarted before all its servers had their orders")
            known = self.leases[known.id]
        if known is not None and known.state != "ending":
            return known
        backoff = self.backoffs.of(peer)
        if backoff.wait_seconds(now):
            raise TooSoon(backoff.why(peer, now))
        if len(self.leases) >= MAX_LEASES:
            raise Refused(f"the pool has {MAX_LEASES} leases, its maximum; release some, or run another pool")
        if self.count(peer, holder) >= MAX_LEASES_PER_HOLDER:
            raise Refused(f"{holder} has {MAX_LEASES_PER_HOLDER} leases, the maximum for one holder")
        if self.count(peer) >= MAX_LEASES_PER_PEER:
            raise Refused(f"{peer} has {MAX_LEASES_PER_PEER} leases, the maximum for one caller")
        self.ranking.see(f"{peer}/{request}", _request(asked, asked.cards))
        parts: dict[str, Part] = {}
        try:
            placed = self._place(asked)
        except DoesNotFit as error:
            if known is not None:
                raise Unavailable(f"{error}; the earlier lease of this request is ending") from error
            raise
        for server, shares in placed.items():
            parts[server] = Part(shares, self.next_version(server))
        made = Lease(
            id=lease, holder=holder, peer=peer, request=request, key=key, state="granted", parts=parts,
            expected_parts=len(parts), deadline=now + TTL_SECONDS, since=now,
            park_idle_seconds=asked.park_idle_seconds,
        )  # fmt: skip
        self.add(made)
        return made

    def renew(self, lease: str, now: float) -> Lease:
        """Extend the lease. Raises NotFound for a lease that does not exist or is ending."""
        renewed = replace(self.live(lease), deadline=now + TTL_SECONDS)
        self.leases[lease] = renewed
        return renewed

    def attach(self, lease: str, peer: str, now: float) -> Lease:
        """Attach `peer` to the lease; if it took the lease, a server's word is not needed any more. Raises as
        `renew`."""
        found = self.renew(lease, now)
        if found.is_adopted and found.peer == peer:
            found = self.leases[lease] = replace(found, is_adopted=False)
            self.touched.add(lease)
        return found

    def let_go(self, lease: str, now: float) -> None:
        """Give the holder, whose connection was closed, RECONNECT_SECONDS to renew."""
        found = self.leases.get(lease)
        if found is not None and found.state != "ending":
            self.leases[lease] = replace(found, deadline=min(found.deadline, now + RECONNECT_SECONDS))

    def resize(
        self, lease: str, *, core: int | None = None, memory_mib: int | None = None, fit_by: float | None = None
    ) -> Lease:
        """Set other limits for every card of a live lease; None keeps a limit. A lease that uses more memory gets no
        more, and ends at `fit_by` (by the clock of `now`) if it still does then.

        Raises:
            NotFound: no such lease.
            InvalidInput: no card can have that.
            DoesNotFit: a card has too little free; nothing was changed.
            Unavailable: the lease is moving.
            NotSupported: the lease shares room.
        """
        found = self.live(lease)
        if found.shares_room:
            raise NotSupported(f"lease {lease} shares room on its card (--parking-resident), which fixes its size")
        if found.second is not None and found.second.may_arrive:
            raise Unavailable(f"lease {lease} is moving; resize it when it has arrived")
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
                found = self.with_part(found, server, replace(found.parts[server], wanted=shares), order=True)
        self.leases[lease] = found
        return found

    def move(self, lease: str, *, token: str, now: float, source: str = "", server: str = "", card: str = "") -> Lease:
        """Order a move of the lease's part on `source` (if it has several) to `server` and `card`, or to the best
        place.

        Raises:
            NotFound: no such lease, server or card.
            DoesNotFit: no other card has room.
            Refused, InvalidInput: it can never move so.
            Unavailable: not now.
        """
        found = self.live(lease)
        source = moves.source_of(found, source, self.servers)
        target, shares = self._targets.choose(found, source, server=server, card=card)
        return moves.begin(self, found, source, target, shares, token=token, now=now)

    def ask_about(self, lease: str, source: str = "") -> tuple[Lease, str]:
        """Ask whether the part of the lease on `source` can move; return the server that answers. Raises as `move`."""
        found = self.live(lease)
        source = moves.source_of(found, source, self.servers)
        self.next_version(source)
        found = self.leases[lease] = replace(found, looks=found.looks + 1)
        return found, source

    def cordon(self, server: str, *, cordoned: bool) -> Server:
        """Keep new leases off the cards of a server, or allow them again; the server remembers it. Raises NotFound."""
        known = self.servers.get(server)
        if known is None:
            raise NotFound(f"there is no server {server}")
        known.to_cordon = None if cordoned == known.cordoned else cordoned
        self.next_version(server)
        if known.away_since is None:
            self.ledger.set_node(NodeCards(server, known.offered))
        return known

    # --- what servers say ---------------------------------------------------------------------------------------------

    def report(self, report: Report, now: float) -> None:
        """Process a server's report. Raises Refused for one server too many."""
        reports.take_in(report, self, epoch=self.epoch, now=now, deadline=now + TTL_SECONDS)

    def server_away(self, name: str, now: float) -> None:
        """Record that a server's connection was closed: it gets nothing new until it reports again."""
        server = self.servers.get(name)
        if server is not None and server.away_since is None:
            server.away_since = now
            self.ledger.set_node(NodeCards(name, tuple(replace(card, healthy=False) for card in server.cards)))
            moves.away(self, name)

    def orders(self, server: str) -> tuple[int, tuple[LeaseRecord, ...]]:
        """Return (version, everything that has to run on `server`): the server ends everything else."""
        known = self.servers[server]
        leases = [self.leases[lease] for lease in sorted(known.leases)]
        return known.version, tuple(record for lease in leases for record in lease.records(server))

    def moves(self, server: str) -> tuple[MoveRecord, ...]:
        """Return the moves from and to `server`."""
        leases = [self.leases[lease] for lease in sorted(self.servers[server].leases)]
        return tuple(record for lease in leases for record in moves.records(lease, server, self.servers))

    def looks(self, server: str) -> tuple[LookRecord, ...]:
        """Return the questions to `server` whether leases can move."""
        leases = [self.leases[lease] for lease in sorted(self.servers[server].leases)]
        return tuple(record for lease in leases for record in moves.look(lease, server))

    def links(self, server: str) -> tuple[LinkRecord, ...]:
        """Return the links of the networks on `server`, as of the last `relink`."""
        return self._links.get(server, ())

    def relink(self) -> None:
        """Decide again which networks are linked, and order changes."""
        found = links(self.leases.values(), self.servers)
        for server in self.servers:
            if found.get(server) != self._links.get(server):
                self.next_version(server)
        self._links = found

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """End leases that were not renewed, and give up servers that stay away. Call it several times a second."""
        for lease in [one.id for one in self.leases.values() if one.deadline <= now]:
            self.end(lease, "its holder stopped renewing it")
        unix = self.unix_at_zero + now
        for found in [one for one in self.leases.values() if one.fit_by is not None and one.fit_by <= unix]:
            if found.shrunk and found.over_limit:
                self.end(found.id, OVER_LIMIT)
            elif found.shrunk and found.state == "active":
                self._kept_its_deadline(found)
        moves.tick(self, now)
        for server in list(self.servers.values()):
            if server.away_since is not None and now - server.away_since >= SERVER_GRACE_SECONDS:
                self._forget_server(server)

    def _kept_its_deadline(self, lease: Lease) -> None:
        """Drop a deadline that was met, and tell the servers: it must not apply to later usage."""
        kept = replace(lease, fit_by=None)
        for server, part in lease.parts.items():
            kept = self.with_part(kept, server, part, order=True)
        self.leases[lease.id] = kept

    def _forget_server(self, server: Server) -> None:
        for lease in list(server.leases):
            if server.name in self.leases[lease].parts:
                self.end(lease, f"server {server.name} was away for {SERVER_GRACE_SECONDS:g} s")
                self.drop_part(self.leases[lease], server)
            moves.forget(self, lease, server)
        del self.servers[server.name]
        self.ledger.remove_node(server.name)
        self.ledger.set_host_memory(server.name, 0)
        self.changed.discard(server.name)

    # --- places -------------------------------------------------------------------------------------------------------

    def _place(self, asked: LeaseRequest) -> dict[str, tuple[CardShare, ...]]:
        """Return shares by server: all on one server if possible, otherwise on as few as the order gives.

        Order: the program's own machine, then the fastest link, then the policy's ranking.
        """
        here = [server for server in self.servers.values() if server.away_since is None]
        if roomy := self._best_first(asked, asked.cards, here):
            return {roomy[0].name: self._shares(asked, asked.cards, roomy[0].name)}
        placed: dict[str, tuple[CardShare, ...]] = {}
        left = asked.cards
        for server in self._best_first(asked, 1, here):
            for count in range(min(left, len(server.cards)), 0, -1):
                if len(placed) < MAX_PARTS and fits(_request(asked, count), self.ledger, [server.name])[0]:
                    placed[server.name] = self._shares(asked, count, server.name)
                    left -= count
                    break
            if not left:
                return placed
        if away := sorted(server.name for server in self.servers.values() if server.away_since is not None):
            raise Unavailable(f"{self._refusal(asked, here)}; {', '.join(away[:8])} may be back soon")
        raise DoesNotFit(self._refusal(asked, here))

    def _best_first(self, asked: LeaseRequest, cards: int, servers: Sequence[Server]) -> list[Server]:
        """Return the servers with room for so many of the cards, best first."""
        request = _request(asked, cards)
        mask = fits(request, self.ledger, [server.name for server in servers])
        roomy = [server for server, ok in zip(servers, mask.tolist(), strict=True) if ok]
        scores = self.ranking.scores(request, [server.name for server in roomy], self._policies, all_fit=True)

        def order(server: Server) -> tuple[bool, int, float, str]:
            return (not asked.host or server.host != asked.host, -server.link_mbps, -scores[server.name], server.name)

        return sorted(roomy, key=order)

    def _shares(self, asked: LeaseRequest, cards: int, server: str) -> tuple[CardShare, ...]:
        return self.ranking.choose(_request(asked, cards), server, self._policies).containers[CONTAINER].cards

    def _refusal(self, asked: LeaseRequest, servers: Sequence[Server]) -> str:
        if not servers:
            return "no server is connected to this pool now"
        reasons = [
            f"{server.name}: {_cards(refusal(_request(asked, 1), self.ledger, server.name))}"
            if not fits(_request(asked, 1), self.ledger, [server.name])[0]
            else f"{server.name}: has room for some of the cards, but not for all"
            for server in servers[:MAX_SERVERS_IN_TEXT]
        ]
        if (more := len(servers) - len(reasons)) > 0:
            reasons.append(f"and {more} servers more")
        amounts = f"{asked.cards} × {asked.core} % and {asked.memory_mib} MiB"
        amounts += f" ({asked.resident_percent} % of it always on the card)" if asked.resident_percent else ""
        return f"no room for {amounts} now: {'; '.join(reasons)}"

    def _check_room(self, lease: Lease, server: str, shares: tuple[CardShare, ...]) -> None:
        row = self.ledger.row(server)
        cards = {card.uuid: column for column, card in enumerate(self.ledger.cards(server))}
        held = {share.uuid: share for share in lease.parts[server].held}
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


def _request(asked: LeaseRequest, cards: int) -> Request:
    # Ask each server for its own cards, as a node for a container with local cards.
    demand = ContainerDemand(
        provisioner=names.QGPU, cards=cards, core=asked.core, memory_mib=asked.memory_mib,
        resident_percent=asked.resident_percent,
    )  # fmt: skip
    return Request(PodDemand(containers={CONTAINER: demand}))


def _cards(why: Refusal) -> str:
    """Return the reasons of a server's first cards, or of the server."""
    listed = [f"card {card.index} {card.reason}" for card in why.cards[:MAX_CARDS_IN_TEXT]]
    if (more := len(why.cards) - len(listed)) > 0:
        listed.append(f"and {more} cards more")
    return ", ".join(listed) or why.reason


def _resized(share: CardShare, core: int | None, memory_mib: int | None) -> CardShare:
    changed = msgspec.structs.replace(
        share,
        core=share.core if core is None else core,
        memory_mib=share.memory_mib if memory_mib is None else memory_mib,
    )
    check_amounts(changed.core, changed.memory_mib)
    return changed
