"""The changes that a server's report makes in the pool: parts run, parts are gone, and unknown leases are adopted.

A report proves that something is *gone* only if the server had read the order to end it: otherwise it may be about to
start it. Cards and the leases on them arrive in the same report, so a pool that has just started cannot allocate
anything twice.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from egpu.core.leasing import moves
from egpu.core.leasing.links import network_address
from egpu.core.leasing.records import LeaseRecord, Report, RunningLease
from egpu.core.leasing.state import Lease, Part, Server
from egpu.core.leasing.table import LeaseTable
from egpu.core.placement.cards import NodeCards
from egpu_base.errors import Refused

MAX_SERVERS: Final = 1024


def take_in(report: Report, table: LeaseTable, *, epoch: str, now: float, deadline: float) -> None:
    """Process a report. Unknown leases are adopted until `deadline`, unless they are renewed; those known to have ended
    are ended; parts that are gone are forgotten. The peer of a lease that was ended for an overrun has to wait from
    `now` on. Raises Refused beyond MAX_SERVERS, and for a server whose networks would have another's address."""
    server = _server(report, table)
    read = report.version if report.epoch == epoch else 0
    running = {(one.record.lease, one.record.place): one for one in report.leases}
    # Leases come before cards, so that no card is known without its leases.
    for one in running.values():
        _running(table, server, one, read=read, now=now, deadline=deadline)
    for lease in list(server.leases):
        _absent(table, server, lease, read, running)
    table.ledger.set_host_memory(server.name, server.parking_mib)
    table.ledger.set_node(NodeCards(server.name, server.offered))


def _server(report: Report, table: LeaseTable) -> Server:
    """Return the reporting server, updated by the report."""
    known = table.servers.get(report.server)
    if known is None and len(table.servers) >= MAX_SERVERS:
        raise Refused(f"the pool has {MAX_SERVERS} servers, its maximum")
    if known is None or known.away_since is not None or known.instance != report.instance:
        table.changed.add(report.server)  # it has read no order yet, or orders in transit were lost
    if report.collectives and (known is None or not known.collectives):
        _check_network(report.server, table)
    server = table.servers.setdefault(report.server, Server(report.server))
    server.says(report)
    return server


def _check_network(name: str, table: LeaseTable) -> None:
    address = network_address(name)
    for other in table.servers.values():
        if other.collectives and other.name != name and network_address(other.name) == address:
            raise Refused(
                f"the networks of {name} and {other.name} would have the same address, made from the name: "
                "start one of them with another --name, or without --collectives"
            )


def _running(
    table: LeaseTable, server: Server, one: RunningLease, *, read: int, now: float, deadline: float
) -> None:  # fmt: skip
    lease, place = one.record.lease, one.record.place
    found = table.leases.get(lease) or _adopted(table, one.record, now=now, deadline=deadline)
    part = found.parts.get(server.name)
    if part is not None and part.running == one and found.second is None:
        return
    if part is None or part.running != one:
        table.touched.add(lease)
    if moves.is_second(found, server.name, place):
        table.leases[lease] = moves.at_second(table, found, one)
        return
    if part is None or part.place != place:
        if found.state != "ending" and (one.arriving or one.left):
            table.leases[lease] = moves.found(table, found, server, one, now)
            return
        if part is not None:  # none of an honest server's
            return
        part = Part((), table.next_version(server.name), place=place, gpu_seconds=one.record.gpu_seconds)
        if found.state != "ending":
            part = replace(part, wanted=one.record.cards)
            found = replace(found, fit_by=_sooner(found.fit_by, one.record.fit_by))
    found = table.with_part(found, server.name, replace(part, running=one))
    table.leases[lease] = found
    if found.state != "ending":
        found = table.leases[lease] = moves.at_first(table, found, server, one, read=read, now=now)
    if server.name not in found.parts or found.parts[server.name].place != place:
        return  # it has left
    if (
        found.state == "granted"
        and len(found.parts) == found.expected_parts
        and all(each.running is not None and each.running.ready for each in found.parts.values())
    ):
        found = replace(found, state="active")
    table.leases[lease] = found
    if one.failure:
        if one.over_limit and found.state != "ending" and not found.is_adopted:
            table.backoffs.again(found.peer, now)
        table.end(lease, one.failure)


def _adopted(table: LeaseTable, record: LeaseRecord, *, now: float, deadline: float) -> Lease:
    """Adopt a lease that only its server knows: from before this pool started, or ended while the server was away."""
    ended = table.ended.get(record.lease)
    adopted = Lease(
        id=record.lease, holder=record.holder, peer=record.peer, request=record.request, key=record.key,
        state="granted" if ended is None else "ending", parts={}, expected_parts=record.parts, deadline=deadline,
        since=now, reason=ended or "", is_adopted=True, is_learned=True, park_idle_seconds=record.park_idle_seconds,
    )  # fmt: skip
    table.add(adopted)
    return adopted


def _absent(
    table: LeaseTable, server: Server, lease: str, read: int, running: Mapping[tuple[str, int], RunningLease]
) -> None:
    """Process that the server does not run a place of a lease (any more), if it had read the latest order of it."""
    found, second = table.leases[lease], table.leases[lease].second
    if second is not None and second.server == server.name and (lease, second.part.place) not in running:
        if read >= second.part.ordered and not second.part.wanted:
            table.drop_second(found, server)
        elif read >= second.part.ordered:
            table.leases[lease] = moves.at_second(table, found, None)
    found = table.leases.get(lease, found)
    part = found.parts.get(server.name)
    if part is None or (lease, part.place) in running or read < part.ordered:
        return
    if part.wanted:
        # This changes the order: only a later report can prove that nothing runs.
        table.end(lease, f"its executor on {server.name} is gone")
        return
    table.drop_part(found, server)


def _sooner(one: float | None, other: float | None) -> float | None:
    """Return the earlier of two optional deadlines."""
    return other if one is None else one if other is None else min(one, other)
