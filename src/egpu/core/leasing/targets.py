"""Where a part of a lease can move: cards of the same model with room, on a server that moves leases.

A program has seen its cards: their number, model and memory. So all cards of a part move together, to as many others of
the same model. The order of places is that of grants: the fastest link, then the policy's ranking."""

from collections.abc import Iterator, Sequence
from typing import Final

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerDemand, PodDemand
from egpu.core.attributes import requirement
from egpu.core.leasing.state import Lease, Part, Server
from egpu.core.leasing.table import CONTAINER, LeaseTable
from egpu.core.placement.cards import Card
from egpu.core.placement.ranking import Ranking
from egpu.core.placement.requests import Request
from egpu.core.policies.registry import Policies
from egpu_base.errors import DoesNotFit, InvalidInput, NotFound, Refused

MAX_SERVERS_IN_TEXT: Final = 3


class Targets:
    """Chooses places in a pool by a policy."""

    def __init__(self, table: LeaseTable, ranking: Ranking, policies: Policies) -> None:
        self._table = table
        self._ranking = ranking
        self._policies = policies

    def choose(self, lease: Lease, source: str, *, server: str, card: str) -> tuple[str, tuple[CardShare, ...]]:
        """Return the server and the shares for the part on `source`: on `server` and `card` (index or UUID) if they are
        given. Raises NotFound, InvalidInput, Refused, and DoesNotFit with what each server lacks."""
        part = lease.parts[source]
        if card and not server:
            raise InvalidInput("card", "a card is one of a server; name it with --to")
        if server:
            found = self._table.servers.get(server)
            if found is None:
                raise NotFound(f"there is no server {server}")
            if why := _unfit(found, lease, source, self._table.servers[source]):
                raise Refused(f"{server} {why}")
            return server, self._shares(part, found, card, is_source=server == source)
        able = [
            one for one in self._table.servers.values() if not _unfit(one, lease, source, self._table.servers[source])
        ]
        reasons: list[str] = []
        for one in self._best_first(part, able):
            try:
                return one.name, self._shares(part, one, "", is_source=one.name == source)
            except DoesNotFit as error:
                reasons.append(str(error))
        if (more := len(reasons) - MAX_SERVERS_IN_TEXT) > 0:
            reasons[MAX_SERVERS_IN_TEXT:] = [f"and {more} servers more"]
        raise DoesNotFit(f"no other place for lease {lease.id}: {'; '.join(reasons) or 'no server can take it'}")

    def _best_first(self, part: Part, servers: Sequence[Server]) -> list[Server]:
        request = _request(part)
        scores = self._ranking.scores(request, [server.name for server in servers], self._policies)
        return sorted(servers, key=lambda one: (-one.link_mbps, -scores[one.name], one.name))

    def _shares(self, part: Part, server: Server, card: str, *, is_source: bool) -> tuple[CardShare, ...]:
        """Return the part's shares on other cards of the server. Raises DoesNotFit, NotFound, InvalidInput."""
        own = {share.uuid for share in part.wanted} if is_source else set[str]()
        share, count = part.wanted[0], len(part.wanted)
        if card:
            if count > 1:
                raise InvalidInput("card", "the lease has several cards; leave --card out")
            if not any(card in (one.uuid, str(one.index)) for one in server.cards):
                raise NotFound(f"{server.name} has no card {card}")
        able = [
            one
            for one in server.cards
            if one.uuid not in own
            and (not card or card in (one.uuid, str(one.index)))
            and _has_room(self._table, server, one, part)
        ]
        if len(able) < count:
            raise DoesNotFit(
                f"{server.name} has {len(able)} other healthy cards of model {share.model or '(unknown)'} with "
                f"{share.core} % and {share.memory_mib} MiB free; {count} are needed"
            )
        chosen = self._preferred(part, server, able) or able[: len(part.wanted)]
        return tuple(_share(one, share) for one, share in zip(chosen, part.wanted, strict=True))

    def _preferred(self, part: Part, server: Server, able: Sequence[Card]) -> list[Card] | None:
        """Return the cards that the policy chooses, if all of them are possible."""
        possible = {one.uuid: one for one in able}
        try:
            chosen = self._ranking.choose(_request(part), server.name, self._policies).containers[CONTAINER].cards
        except DoesNotFit:
            return None
        found = [possible[share.uuid] for share in chosen if share.uuid in possible]
        return found if len(found) == len(part.wanted) else None


def on_sick_cards(table: LeaseTable) -> Iterator[tuple[Lease, str]]:
    """Yield leases that could move off cards that do not work any more, each with the server of the card."""
    for server in table.servers.values():
        sick = {card.uuid for card in server.cards if not card.healthy}
        if not sick or server.away_since is not None or not server.movable:
            continue
        for lease in (table.leases[name] for name in sorted(server.leases)):
            part = lease.parts.get(server.name)
            is_free = lease.second is None and lease.state == "active" and not lease.shares_room
            if part is not None and is_free and any(share.uuid in sick for share in part.wanted):
                yield lease, server.name


def _unfit(server: Server, lease: Lease, source: str, left: Server) -> str:
    """Return why no card of the server can be a target; "" if one may be."""
    if server.away_since is not None:
        return "is away"
    if not server.movable:
        return "cannot move leases: its version, or its executors', is too old"
    if server.is_cordoned:
        return "takes no new leases: it is drained"
    if server.simulated != left.simulated:
        return "has simulated cards, or the lease has: a program cannot change between these and real ones"
    if server.name != source and server.name in lease.parts:
        return "has other cards of the lease"
    return ""


def _request(part: Part) -> Request:
    first = part.wanted[0]
    select = (requirement("model", "In", (first.model,), field="model"),) if first.model else ()
    demand = ContainerDemand(
        provisioner=names.QGPU, cards=len(part.wanted), core=first.core, memory_mib=first.memory_mib, select=select
    )
    return Request(PodDemand(containers={CONTAINER: demand}))


def _has_room(table: LeaseTable, server: Server, card: Card, part: Part) -> bool:
    share = part.wanted[0]
    row = table.ledger.row(server.name)
    columns = [one.uuid for one in table.ledger.cards(server.name)]
    if row is None or not card.healthy or card.uuid not in columns or card.model != share.model:
        return False
    cell = (row, columns.index(card.uuid))
    most = max(one.memory_mib for one in part.wanted)
    same_memory = share.card_memory_mib in (0, card.memory_mib)
    return (
        same_memory
        and int(table.ledger.core_free[cell]) >= max(one.core for one in part.wanted)
        and int(table.ledger.memory_free[cell]) >= most
    )


def _share(card: Card, share: CardShare) -> CardShare:
    return CardShare(
        uuid=card.uuid, index=card.index, minor=card.minor, core=share.core, memory_mib=share.memory_mib,
        model=card.model, card_memory_mib=card.memory_mib,
    )  # fmt: skip
