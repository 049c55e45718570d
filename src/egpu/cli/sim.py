"""`egpu sim list`, `egpu sim rm`: simulated machines of ours whose cards are in shared memory now."""

import time
from typing import Annotated

import typer

from egpu.adapters.simulator import shared_memory
from egpu.cli.examples import epilog
from egpu.cli.output import EXIT_USAGE, Format, Table, fail, note, show

sim = typer.Typer(help="Simulated machines of yours in shared memory: list them, remove them.", no_args_is_help=True)

_MIB = 1 << 20


@sim.command("list", epilog=epilog("sim list"))
def list_command(
    output: Annotated[
        Format, typer.Option("-o", "--output", metavar="FORMAT", help="table, wide, json or yaml.")
    ] = Format.TABLE,
) -> None:
    """What there is, how much memory it takes, and whether anything runs on it."""
    columns = ("machine", "node", "cards", "memory", "age", "state", "file")
    table = Table(columns, right=frozenset({"cards", "memory", "age"}), wide=frozenset({"file"}), spare=("node",))
    for one in shared_memory.list_machines():
        minutes = int(time.time() - one.created_unix_ns / 1e9) // 60
        row = (one.name, one.node_name, str(one.cards), f"{one.used_bytes // _MIB} MiB", f"{minutes} min", one.state,
               str(one.path))  # fmt: skip
        record = {"machine": one.name, "node": one.node_name, "cards": one.cards, "memoryBytes": one.used_bytes,
                  "createdUnixNs": one.created_unix_ns, "state": one.state, "file": str(one.path)}  # fmt: skip
        table.add(row, record)
    show(table, output, empty="no simulated machine of yours is in shared memory")


@sim.command("rm", epilog=epilog("sim rm"))
def remove(
    machines: Annotated[
        list[str] | None, typer.Argument(metavar="[MACHINE...]", help="As `egpu sim list` calls them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every one on which nothing runs.")] = False,
) -> None:
    """Remove machines with what their cards hold. Whoever needs one makes it anew; one in use is left alone."""
    if bool(machines) == everything:
        fail("name machines, or say --all", code=EXIT_USAGE)
    found = shared_memory.list_machines()
    unknown = set(machines or ()) - {one.name for one in found}
    if unknown:
        fail(f"{min(unknown)}: there is no such machine; `egpu sim list` names them", code=EXIT_USAGE)
    chosen = [one for one in found if everything or one.name in (machines or ())]
    kept = [one for one in chosen if not shared_memory.remove_unused(one)]
    for one in chosen:
        note(f"{one.name}: {'kept, something runs on it' if one in kept else 'removed'}")
    if kept and not everything:
        raise typer.Exit(1)
