"""Leases and servers of the pool as their holders and people see them."""

from typing import Final

from egpu.adapters.pool import messages
from egpu.core.leasing.pool import Pool
from egpu.core.leasing.records import executor_name
from egpu.core.leasing.state import Lease, Server

EXECUTOR_SOCKET: Final = "lease.sock"


def lease_view(pool: Pool, lease: Lease) -> messages.LeaseView:
    """Return a lease as its holder and people see it."""
    cards: list[messages.CardView] = []
    parts: list[messages.PartView] = []
    for name, part in lease.parts.items():
        running, server = part.running, pool.servers.get(name)
        shares = part.wanted or (running.record.cards if running is not None else ())
        used = running.used_mib if running is not None and len(running.used_mib) == len(shares) else None
        cards += [
            messages.CardView(
                server=name,
                share=share,
                used_mib=None if used is None else used[place],
                parked_mib=running.parked_mib if running is not None and share.resident_mib else 0,
            )
            for place, share in enumerate(shares)
        ]
        if server is not None:
            executor = executor_name(lease.id, part.place)
            socket = f"{server.directory}/{executor}/{EXECUTOR_SOCKET}" if server.directory else ""
            view = messages.PartView(
                server=name, address=server.address, host=server.host, socket=socket, cards=len(shares),
                libraries=server.libraries, place=part.place, part=lease.record(name).part,
            )  # fmt: skip
            parts.append(view)
    running_parts = [part.running for part in lease.parts.values() if part.running is not None]
    return messages.LeaseView(
        lease=lease.id, holder=lease.holder, peer=lease.peer, state=lease.state, cards=tuple(cards),
        parts=tuple(parts), over_limit=lease.over_limit,
        gpu_seconds=sum(one.gpu_seconds for one in running_parts)
        + sum(part.gpu_seconds for part in lease.parts.values()),
        sessions=sum(one.sessions for one in running_parts),
        moving=lease.second.server if lease.second is not None and lease.second.may_arrive else "",
    )  # fmt: skip


def _parked_mib(pool: Pool, server: Server) -> int:
    running = [part.running for lease in server.leases if (part := pool.leases[lease].parts.get(server.name))]
    return sum(one.parked_mib for one in running if one is not None)


def server_views(pool: Pool) -> tuple[messages.ServerView, ...]:
    """Return all servers as people see them."""
    views: list[messages.ServerView] = []
    for server in pool.servers.values():
        row = pool.ledger.row(server.name)
        ledger = pool.ledger
        view = messages.ServerView(
            server=server.name, address=server.address, host=server.host, link_mbps=server.link_mbps,
            connected=server.away_since is None, cards=len(server.cards), leases=len(server.leases),
            core=100 * len(server.cards), core_free=0 if row is None else int(ledger.core_free[row].sum()),
            memory_mib=sum(card.memory_mib for card in server.cards),
            memory_free_mib=0 if row is None else int(ledger.memory_free[row].sum()),
            confinement=server.confinement, libraries=server.libraries, cordoned=server.is_cordoned,
            movable=server.movable, parking_mib=server.parking_mib,
            parking_free_mib=max(0, ledger.host_memory(server.name)[1]), parked_mib=_parked_mib(pool, server),
            thrashing=server.thrashing,
        )  # fmt: skip
        views.append(view)
    return tuple(views)
