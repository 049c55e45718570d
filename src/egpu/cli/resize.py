"""`egpu resize LEASE --memory 12GiB --core 60`: new limits for a lease of the pool, while its program runs."""

from typing import Annotated

import typer

from egpu.cli import pool
from egpu.cli.output import EXIT_USAGE, Table, fail, note, show
from egpu_base.api.quantities import parse_memory_mib
from egpu_base.errors import InvalidInput


def resize(
    lease: Annotated[str, typer.Argument(help="Name of the lease, as in `egpu get leases`.")],
    core: Annotated[int | None, typer.Option(help="Percent of each card's compute time.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of each card, such as 8GiB. Without unit: MiB.")] = None,
    within: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="End the lease (over_limit) if it still uses more memory than its new limit after this time. Default: "
            "never.",
            show_default=False,
        ),
    ] = None,
    address: pool.PoolAddress = None,
    secret_file: pool.SecretFile = None,
    tls_ca: pool.TlsCa = None,
    tls_cert: pool.TlsCert = None,
    tls_key: pool.TlsKey = None,
) -> None:
    """Change the limits of a lease, a program's slice in a pool. Allocations above the new memory limit fail."""
    found = pool.given_credentials(secret_file, tls_ca, tls_cert, tls_key)
    try:
        memory_mib = None if memory is None else parse_memory_mib(memory, field="--memory")
    except InvalidInput as error:
        fail(str(error), code=EXIT_USAGE)
    if core is None and memory_mib is None:
        fail("no new limit is given. Use --core, --memory or both", code=EXIT_USAGE)
    granted = pool.ask(
        address, found, lambda client: client.resize(lease, core=core, memory_mib=memory_mib, within_seconds=within)
    )
    table = Table(("server", "card", "core", "memory"), right=frozenset({"core", "memory"}))
    for card in granted.lease.cards:
        share = card.share
        table.add((card.server, share.model or share.uuid, f"{share.core} %", f"{share.memory_mib} MiB"), {})
    show(table)
    if granted.lease.over_limit:
        end = "" if within is None else f". If it does not within {within:g} s, the lease ends"
        note(f"the program uses more memory than its new limit. New allocations fail until it frees enough{end}")
