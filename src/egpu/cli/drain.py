"""`egpu drain SERVER`: moves all leases of a server of the pool to others, and keeps new ones off its cards."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer

from egpu.adapters.pool import messages
from egpu.cli import pool
from egpu.cli.move import Output, moved_table
from egpu.cli.output import EXIT_FAILED, Format, note, show
from egpu_base.errors import ElasticGPUError, NotFound, Unavailable

if TYPE_CHECKING:
    from egpu.adapters.pool.client import PoolClient

AGAIN_SECONDS: Final = 1.0
ATTEMPTS: Final = 10
"""Tries for a lease that is starting, or moving for another reason."""


def drain(
    server: Annotated[str, typer.Argument(help="Name of the server, as in `egpu get servers`.")],
    undo: Annotated[bool, typer.Option("--undo", help="Allow new leases on the server again. No lease moves.")] = False,
    output: Output = Format.TABLE,
    address: pool.PoolAddress = None,
    secret_file: pool.SecretFile = None,
    tls_ca: pool.TlsCa = None,
    tls_cert: pool.TlsCert = None,
    tls_key: pool.TlsKey = None,
) -> None:
    """Move all leases of a pool's server to other servers while their programs run. The server gets no new leases."""
    found = pool.given_credentials(secret_file, tls_ca, tls_cert, tls_key)
    if undo:
        pool.ask(address, found, lambda client: client.cordon(server, cordoned=False))
        note(f"{server} gets new leases again")
        return
    moved, stay = pool.ask(address, found, lambda client: drained(client, server))
    show(moved_table(moved), output, empty=f"{server} has no leases to move")
    for lease, reason in stay.items():
        note(f"lease {lease} stays on {server}: {reason}")
    if stay:
        raise typer.Exit(EXIT_FAILED)


async def drained(client: "PoolClient", server: str) -> tuple[list[messages.Arrived], dict[str, str]]:
    """Keep new leases off the server, and move those that are there one by one. Return the moves, and why others stay.

    Raises NotFound for an unknown server, Refused, Unavailable."""
    await client.cordon(server, cordoned=True)
    moved: list[messages.Arrived] = []
    stay: dict[str, str] = {}
    while left := [one.lease for one in await client.leases() if _is_on(one, server) and one.lease not in stay]:
        for lease in left:
            try:
                moved.append(await _moved(client, lease, server))
            except NotFound:
                continue  # it has ended
            except ElasticGPUError as error:
                stay[lease] = str(error)
    return moved, stay


def _is_on(lease: messages.LeaseView, server: str) -> bool:
    return lease.state != "ending" and any(part.server == server for part in lease.parts)


async def _moved(client: "PoolClient", lease: str, server: str) -> messages.Arrived:
    for _ in range(ATTEMPTS - 1):
        try:
            return await client.move(lease, source=server)
        except Unavailable:
            await asyncio.sleep(AGAIN_SECONDS)
    return await client.move(lease, source=server)
