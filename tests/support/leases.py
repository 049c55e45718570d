"""A pool's servers and leases in a few words: what a server says, what a program asks."""

from collections.abc import Sequence

from egpu.core.leasing.pool import Pool
from egpu.core.leasing.records import LeaseRecord, LeaseRequest, Report, RunningLease
from egpu.core.leasing.state import Lease
from egpu.core.placement.ledger import Card

CARD_MIB = 1000


def cards(server: str, count: int) -> tuple[Card, ...]:
    """Cards of CARD_MIB."""
    return tuple(
        Card(uuid=f"GPU-{server}-{index}", index=index, minor=index, memory_mib=CARD_MIB) for index in range(count)
    )


def report(
    server: str,
    count: int = 1,
    leases: Sequence[RunningLease] = (),
    *,
    host: str = "",
    link_mbps: int = 1,
    instance: str = "1",
    epoch: str = "",
    version: int = 0,
) -> Report:
    """What `server`, with `count` cards, says."""
    return Report(
        server=server, address="", host=host, link_mbps=link_mbps, instance=instance, cards=cards(server, count),
        leases=tuple(leases), epoch=epoch, version=version,
    )  # fmt: skip


def running(
    record: LeaseRecord, occupied_mib: Sequence[int] | None = None, *, ready: bool = True, failure: str = ""
) -> RunningLease:
    """An executor; without `occupied_mib` it has just its limits."""
    occupied = tuple(share.memory_mib for share in record.cards) if occupied_mib is None else tuple(occupied_mib)
    return RunningLease(record=record, occupied_mib=occupied, ready=ready, failure=failure)


def grant(
    pool: Pool,
    lease: str,
    count: int = 1,
    *,
    core: int = 50,
    memory_mib: int = 400,
    host: str = "",
    holder: str = "h",
    peer: str = "p",
    request: str = "",
    key: str = "",
    now: float = 0.0,
) -> Lease:
    """`count` cards of the pool; `request` is the lease's name unless it is given, and `key` made from it."""
    asked = LeaseRequest(cards=count, core=core, memory_mib=memory_mib, host=host)
    return pool.grant(
        asked, lease=lease, key=key or f"key of {lease}", holder=holder, peer=peer, request=request or lease, now=now
    )


def obey(pool: Pool, server: str, now: float = 0.0, *, ready: bool = True) -> None:
    """The server reads its orders, does them at once, and reports."""
    version, records = pool.orders(server)
    known = pool.servers[server]
    leases = [running(record, ready=ready) for record in records]
    pool.report(
        report(
            server, len(known.cards), leases, host=known.host, link_mbps=known.link_mbps, instance=known.instance,
            epoch=pool.epoch, version=version,
        ),
        now,
    )  # fmt: skip
