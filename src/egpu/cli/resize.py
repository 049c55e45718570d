"""`egpu resize LEASE --memory 12GiB --core 60`: other limits for a lease of the pool, while its program runs."""

from typing import Annotated

import typer

from egpu.api.quantities import parse_memory_mib
from egpu.cli import pool
from egpu.cli.output import EXIT_USAGE, Table, fail, note, show
from egpu.errors import InvalidInput


def resize(
    lease: Annotated[str, typer.Argument(help="The lease, as `egpu get leases` shows it.")],
    core: Annotated[int | None, typer.Option(help="Percent of each card's compute time.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of each card: 8GiB, 512MiB; a bare number is MiB.")] = None,
    within: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds to give back what is beyond; then the lease ends (over_limit)."),
    ] = None,
    address: pool.PoolAddress = None,
    secret_file: pool.SecretFile = None,
    tls_ca: pool.TlsCa = None,
    tls_cert: pool.TlsCert = None,
    tls_key: pool.TlsKey = None,
) -> None:
    """Give a running lease other limits. More counts at once; less stops new allocations until enough is freed."""
    try:
        found = pool.credentials(secret_file, tls_ca, tls_cert, tls_key)
        memory_mib = None if memory is None else parse_memory_mib(memory, field="--memory")
    except InvalidInput as error:
        fail(str(error), code=EXIT_USAGE)
    if core is None and memory_mib is None:
        fail("say what is to change: --core, --memory or both", code=EXIT_USAGE)
    granted = pool.ask(
        address, found, lambda client: client.resize(lease, core=core, memory_mib=memory_mib, within_seconds=within)
    )
    table = Table(("server", "card", "core", "memory"), right=frozenset({"core", "memory"}))
    for card in granted.lease.cards:
        share = card.share
        table.add((card.server, share.model or share.uuid, f"{share.core} %", f"{share.memory_mib} MiB"), {})
    show(table)
    if granted.lease.over_limit:
        end = "" if within is None else f", and in {within:g} s the lease ends if it was not"
        note(f"it still uses more memory than that: new allocations fail until enough is freed{end}")
