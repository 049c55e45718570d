"""Why a lease that moves never has two final places, never none, and why every move ends.

Each part of a lease has one final place (`Lease.parts`). While it moves it has a second one (`Lease.second`), on
another server or on other cards of the same. Both count in the ledger. Each has a number of its own, which is never
used again.

    begin ──► target ── cancel ──► cancelled ── the source cannot leave any more ──► gone ── nothing runs there ──► none
                 └────────┬────────────┘
                     source has left: the places change roles
                          └──► left ── the new place is final ──► gone

1. *One process decides.* The sessions leave in one step of the source's executor: it writes one line into its file of
   events. Before that line everything runs at the source, whatever happens elsewhere. After it nothing runs there. The
   line outlives the executor and its daemon, which reports it as "left".
2. *A target is given up only when the source cannot leave for it any more*: the source's server has refused the move,
   or has read an order without it and reports that the part has not left. Reports name the order that was read before.
   A daemon that has just started reports "unsure", until its executor has dropped what an earlier daemon said to it.
3. *A target becomes final only by the report "left".* The source's server keeps that report until the target's server
   has read that its place is final ("left" above). So a broker that knows nothing learns it from one of the two.

No clock is compared, and every case below follows from these rules.

- *Two movers*: a lease with a second place refuses another move. There is one broker of an epoch, and a server follows
  the orders of its newest connection alone.
- *The broker dies*: the servers go on. A new broker learns both places, in any order, and knows no token, so it
  cancels: rule 2 ends the target, or rule 3 makes it final, whichever the source reports.
- *The source's daemon dies*: its executor sees the connection end, and goes on, unless it has left. Both are reported
  by the next daemon. If none comes, the lease ends as any lease of a server that stays away.
- *The target, its daemon or the network between the two fails before the source has left*: the source refuses and goes
  on. If the target fails after that, the lease ends as any lease whose executor is gone.
- *The network to the broker is cut*: a target that is away cancels the move, which rule 2 completes. A source that is
  away decides nothing until it is back or forgotten.
- *Time*: a move that takes MOVE_SECONDS is cancelled. A place whose counterpart is not found in ORPHAN_SECONDS ends
  with its lease.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from egpu.api.allocation import CardShare
from egpu.core.leasing.records import LookRecord, MoveRecord, RunningLease
from egpu.core.leasing.state import Lease, Outcome, Part, Second, Server
from egpu.core.leasing.table import LeaseTable
from egpu_base.errors import InvalidInput, NotFound, Refused, Unavailable

MOVE_SECONDS: Final = 600.0
"""The longest time of a move: the memory of a whole card over a network of 1 Gbit/s."""
ORPHAN_SECONDS: Final = 30.0
"""The time for a broker that has just started to learn the other place: as long as a server may be away."""


def source_of(lease: Lease, source: str, servers: Mapping[str, Server]) -> str:
    """Return the server of the part that is to move, `source` if it is given. Raises NotFound, InvalidInput, Refused,
    Unavailable."""
    if source and source not in lease.parts:
        raise NotFound(f"lease {lease.id} has no cards on {source}")
    if not source and len(lease.parts) > 1:
        raise InvalidInput("from", f"lease {lease.id} has cards on {', '.join(lease.parts)}; choose one with --from")
    source = source or next(iter(lease.parts))
    if lease.second is not None:
        what = "is moving" if lease.second.may_arrive else "has not left an earlier place completely"
        raise Unavailable(f"lease {lease.id} {what}; try again in a moment")
    if lease.state != "active":
        raise Unavailable(f"lease {lease.id} is {lease.state}; its executors must run before it can move")
    if lease.shares_room:
        raise Refused(f"lease {lease.id} may be parked (--parking-resident); such a lease stays on its card")
    server = servers[source]
    if server.away_since is not None:
        raise Unavailable(f"{source} is away; its leases can move when it is back")
    if not server.movable:
        raise Refused(f"{source} cannot move leases: its version, or its executors', is too old")
    if not lease.in_force or lease.over_limit:
        raise Unavailable(f"lease {lease.id} uses more memory than its new limit, or the limit is not in force yet")
    return source


def begin(
    table: LeaseTable, lease: Lease, source: str, target: str, shares: tuple[CardShare, ...], *, token: str, now: float
) -> Lease:
    """Order a move of the part on `source` to these shares of `target`, and count both."""
    leaving = lease.parts[source]
    assert leaving.running is not None
    record = leaving.running.record
    part = Part(shares, 0, place=_next_place(lease), number=record.part)
    table.next_version(source)
    second = Second(state="target", server=target, part=part, since=now, source=source, token=token)
    moving = table.leases[lease.id] = table.with_second(lease, second, order=True)
    table.touched.add(lease.id)
    return moving


def cancel(table: LeaseTable, lease: Lease, outcome: Outcome) -> None:
    """Order that nothing of a lease leaves for its second place any more. Does nothing if that is ordered already."""
    second = lease.second
    if second is None or second.state != "target":
        return
    version = table.next_version(second.source) if second.source in table.servers else 0
    second = replace(second, state="cancelled", cancelled=version, outcome=outcome)
    table.leases[lease.id] = replace(lease, second=second)
    table.touched.add(lease.id)


def records(lease: Lease, server: str, servers: Mapping[str, Server]) -> list[MoveRecord]:
    """Return the move of a lease as its order for `server`: a cancelled one only for the target, which is not final."""
    second = lease.second
    if second is None or not second.may_arrive:
        return []
    going = second.state == "target"
    if server != second.server and not (going and server == second.source):
        return []
    target = servers.get(second.server)
    address = target.address if target is not None else ""
    return [
        MoveRecord(
            lease=lease.id, place=second.part.place, source=second.source, target=second.server, address=address,
            token=second.token if going else "",
        )
    ]  # fmt: skip


def look(lease: Lease, server: str) -> list[LookRecord]:
    """Return the question, if there is one without an answer, whether the part on `server` can move."""
    part = lease.parts.get(server)
    if part is None or not lease.looks or part.running is None:
        return []
    answered = part.running.look is not None and part.running.look.number == lease.looks
    return [] if answered else [LookRecord(lease=lease.id, number=lease.looks)]


# --- what servers say -------------------------------------------------------------------------------------------------


def is_second(lease: Lease, server: str, place: int) -> bool:
    """Return whether this is the second place of a lease."""
    second = lease.second
    return second is not None and (second.server, second.part.place) == (server, place)


def found(table: LeaseTable, lease: Lease, server: Server, one: RunningLease, now: float) -> Lease:
    """Return the lease with a place that this pool did not order, because it is younger than the place."""
    record, second = one.record, lease.second
    part = Part(record.cards, table.next_version(server.name), one, place=record.place, number=record.part)
    part = replace(part, gpu_seconds=record.gpu_seconds)
    if one.left and second is not None and second.part.place == one.departure_place:
        return _promoted(table, replace(lease, second=replace(second, source=server.name)), one, now)
    if one.arriving and second is not None and second.state == "left" and _left_for(second) == record.place:
        return table.with_part(lease, server.name, part)
    if second is not None:  # a third place is none of an honest server's
        return lease
    other = next((name for name, each in lease.parts.items() if _number(each) == record.part), "")
    if one.left:
        left = Second(state="left", server=server.name, part=part, since=now, source=server.name)
        lease = table.with_second(lease, left)
        final = lease.parts[other].running if other else None
        return _give_up(table, lease) if final is not None and not final.arriving else lease
    version = table.next_version(other) if other else 0
    return table.with_second(
        lease,
        Second(state="cancelled", server=server.name, part=part, since=now, source=other, cancelled=version),
    )


def at_first(table: LeaseTable, lease: Lease, server: Server, one: RunningLease, *, read: int, now: float) -> Lease:
    """Return the lease after a report of one of its final places."""
    second, departure = lease.second, one.departure
    if second is None:
        return _without(table, lease, server, one, now) if one.left else lease
    if second.state == "left":
        is_new = _number(second.part) == one.record.part and second.part.place < one.record.place
        return _give_up(table, lease) if is_new and not one.arriving else lease
    if not second.may_arrive:
        return lease
    if not second.source and second.part.number == one.record.part:  # learned before its source
        version = table.next_version(server.name)
        lease = replace(lease, second=replace(second, source=server.name, cancelled=version))
        second = lease.second
        assert second is not None
    if second.source != server.name:
        return lease
    if departure is not None and departure.place == second.part.place:
        if departure.state == "left":
            return _promoted(table, lease, one, now)
        if departure.state == "refused":
            outcome = Outcome(departure.place, departure.why, "hindrance" if departure.hindrance else "failed")
            return _give_up(table, lease, second.outcome or outcome)
    elif one.left:
        return _without(table, lease, server, one, now)
    elif second.state == "cancelled" and departure is None and read >= second.cancelled:
        return _give_up(table, lease)
    return lease


def at_second(table: LeaseTable, lease: Lease, one: RunningLease | None) -> Lease:
    """Return the lease after a report of its second place; None: it is not there, by its newest order."""
    second = lease.second
    assert second is not None
    if one is not None:
        lease = table.with_second(lease, replace(second, part=replace(second.part, running=one)))
    if second.state == "target" and (one is None or one.failure):
        why = "the executor there is gone" if one is None else one.failure
        table.leases[lease.id] = lease
        cancel(table, lease, Outcome(second.part.place, f"{second.server}: {why}", "target"))
        return table.leases[lease.id]
    return lease


def away(table: LeaseTable, server: str) -> None:
    """Cancel what was to arrive on a server whose connection was closed."""
    for lease in [table.leases[name] for name in table.servers[server].leases]:
        if lease.second is not None and lease.second.server == server:
            cancel(table, lease, Outcome(lease.second.part.place, f"{server} is away", "target"))


def forget(table: LeaseTable, name: str, server: Server) -> None:
    """Take the second place of a lease off a server that is forgotten. Until its source has read that it is cancelled,
    the lease remembers it."""
    lease = table.leases.get(name)
    if lease is None or lease.second is None or lease.second.server != server.name:
        return
    if not lease.second.may_arrive:
        table.drop_second(lease, server)
        return
    table.release_second(lease, server)
    cancel(table, lease, Outcome(lease.second.part.place, f"{server.name} is away", "target"))


def tick(table: LeaseTable, now: float) -> None:
    """Cancel moves that take too long; end leases whose other place is not found."""
    for lease in [one for one in table.leases.values() if one.second is not None and one.state != "ending"]:
        second = lease.second
        assert second is not None
        if second.state == "target" and now - second.since >= MOVE_SECONDS:
            cancel(table, lease, Outcome(second.part.place, f"it took more than {MOVE_SECONDS:g} s", "slow"))
        elif len(lease.parts) < lease.expected_parts and now - second.since >= ORPHAN_SECONDS:
            table.end(lease.id, f"{second.server} has one place of its move, and no server the other")


def _promoted(table: LeaseTable, lease: Lease, one: RunningLease, now: float) -> Lease:
    """Return the lease after its part has left `second.source`: the second place is final, and the first is left."""
    second, departure = lease.second, one.departure
    assert second is not None
    assert departure is not None
    old = lease.parts.get(second.source) or Part(one.record.cards, 0, one, place=one.record.place)
    used = one.record.gpu_seconds + one.gpu_seconds
    arrived = replace(second.part, gpu_seconds=used)
    parts = {name: part for name, part in lease.parts.items() if name != second.source}
    moved = Outcome(departure.place, bytes=departure.bytes, paused_ns=departure.paused_ns)
    left = Second(
        state="left", server=second.source, part=replace(old, running=one), since=now, source=second.source
    )  # fmt: skip
    lease = table.with_second(replace(lease, parts=parts, moved=moved, second=None), left, order=True)
    table.touched.add(lease.id)
    if second.server not in table.servers or (arrived.running is not None and arrived.running.failure):
        table.leases[lease.id] = lease
        why = arrived.running.failure if arrived.running is not None else "its server is gone"
        lease = lease.with_part(second.server, arrived) if second.server in table.servers else lease
        table.leases[lease.id] = lease
        table.end(lease.id, f"it had moved to {second.server}: {why}")
        return table.leases[lease.id]
    return table.with_part(lease, second.server, arrived, order=True)


def _without(table: LeaseTable, lease: Lease, server: Server, one: RunningLease, now: float) -> Lease:
    """Return a lease that has left its place for one that this pool does not know (yet)."""
    parts = {name: part for name, part in lease.parts.items() if name != server.name}
    left = Second(
        state="left", server=server.name, part=replace(lease.parts[server.name], running=one), since=now,
        source=server.name,
    )  # fmt: skip
    if lease.second is not None:  # an order for yet another place has not reached it: that one is not needed
        table.leases[lease.id] = lease
        table.end(lease.id, f"it left {server.name} for a place that is gone")
        return table.leases[lease.id]
    return table.with_second(replace(lease, parts=parts), left, order=True)


def _give_up(table: LeaseTable, lease: Lease, outcome: Outcome | None = None) -> Lease:
    """Return the lease without its second place, once nothing runs there."""
    second = lease.second
    assert second is not None
    if second.state != "left":
        lease = replace(lease, moved=outcome or second.outcome)
    table.touched.add(lease.id)
    if second.server not in table.servers:
        return replace(lease, second=None)
    return table.with_second(lease, replace(second, state="gone", part=replace(second.part, wanted=())), order=True)


def _left_for(second: Second) -> int:
    return 0 if second.part.running is None else second.part.running.departure_place


def _number(part: Part) -> int:
    return part.number if part.running is None else part.running.record.part


def _next_place(lease: Lease) -> int:
    """Return a number that none of its places had."""
    known = [part.place for part in lease.parts.values()]
    known += [part.running.departure_place for part in lease.parts.values() if part.running is not None]
    return 1 + max([*known, 0 if lease.moved is None else lease.moved.place])
