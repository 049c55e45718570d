"""`egpu move LEASE --to SERVER`: a lease of the pool to other cards, while its program runs."""

from typing import Annotated

import typer

from egpu.adapters.pool import messages
from egpu.cli import pool
from egpu.cli.output import EXIT_FAILED, EXIT_USAGE, Format, Table, fail, note, show
from egpu_base.api.quantities import MIB_BYTES

Output = Annotated[Format, typer.Option("-o", "--output", metavar="FORMAT", help="table, wide, json or yaml.")]


def move(
    lease: Annotated[str, typer.Argument(help="Name of the lease, as in `egpu get leases`.")],
    to: Annotated[str, typer.Option(help="Server to move to. Default: the best server with room.")] = "",
    card: Annotated[str, typer.Option(help="Card of --to: its index or UUID. Default: the best card.")] = "",
    source: Annotated[
        str, typer.Option("--from", help="Server that the lease leaves, if it has cards of several servers.")
    ] = "",
    check: Annotated[
        bool, typer.Option("--check", help="Only list what prevents a move. The program keeps running.")
    ] = False,
    output: Output = Format.TABLE,
    address: pool.PoolAddress = None,
    secret_file: pool.SecretFile = None,
    tls_ca: pool.TlsCa = None,
    tls_cert: pool.TlsCert = None,
    tls_key: pool.TlsKey = None,
) -> None:
    """Move a lease to other cards while its program runs. If that fails, the program continues where it is."""
    if check and (to or card):
        fail("--check excludes --to and --card. It looks at the program, not at other cards", code=EXIT_USAGE)
    found = pool.given_credentials(secret_file, tls_ca, tls_cert, tls_key)
    if check:
        answer = pool.ask(address, found, lambda client: client.movable(lease, source=source))
        _show_check(lease, answer, output)
        return
    arrived = pool.ask(address, found, lambda client: client.move(lease, source=source, server=to, card=card))
    show(moved_table([arrived]), output)


def moved_table(moves: list[messages.Arrived]) -> Table:
    """Return the table of finished moves: one row per card of a lease."""
    table = Table(("lease", "server", "card", "moved", "pause"), right=frozenset({"moved", "pause"}))
    for arrived in moves:
        moved_mib, pause_ms = arrived.bytes // MIB_BYTES, round(arrived.paused_ns / 1e6, 1)
        for one in arrived.lease.cards:
            name = one.share.model or one.share.uuid
            record = {
                "lease": arrived.lease.lease, "server": one.server, "uuid": one.share.uuid, "model": one.share.model,
                "movedBytes": arrived.bytes, "pauseMilliseconds": pause_ms,
            }  # fmt: skip
            table.add((arrived.lease.lease, one.server, name, f"{moved_mib} MiB", f"{pause_ms} ms"), record)
    return table


def _show_check(lease: str, answer: messages.Movable, output: Format) -> None:
    """Show what prevents a move. Ends the program with status 1 if anything does."""
    look = answer.look
    table = Table(("lease", "movable", "memory", "prevented by"), right=frozenset({"memory"}))
    record = {"lease": lease, "movable": not look.prevents, "bytes": look.bytes, "prevents": list(look.prevents)}
    words = "; ".join(look.prevents) or "-"
    table.add((lease, "no" if look.prevents else "yes", f"{look.bytes // MIB_BYTES} MiB", words), record)
    show(table, output)
    if look.prevents:
        note("a move would be refused. The program continues where it is")
        raise typer.Exit(EXIT_FAILED)
