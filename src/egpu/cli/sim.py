"""`egpu sim list`, `egpu sim rm`: the user's simulated machines in shared memory."""

import time
from typing import Annotated

import typer

from egpu.cli.examples import epilog
from egpu.cli.output import EXIT_USAGE, Format, Table, fail, note, show

sim = typer.Typer(
    help="List or remove simulated machines: sets of simulated cards, kept in the memory of this computer.",
    no_args_is_help=True,
)

_MIB = 1 << 20


@sim.command("list", epilog=epilog("sim list"))
def list_command(
    output: Annotated[
        Format, typer.Option("-o", "--output", metavar="FORMAT", help="table, wide, json or yaml.")
    ] = Format.TABLE,
) -> None:
    """List your simulated machines, with the memory that they use and their state."""
    from egpu.laptop.machines import list_machines

    columns = ("machine", "node", "cards", "memory", "age", "state", "file")
    table = Table(columns, right=frozenset({"cards", "memory", "age"}), wide=frozenset({"file"}), spare=("node",))
    for one in list_machines():
        minutes = int(time.time() - one.created_unix_ns / 1e9) // 60
        row = (one.name, one.node_name, str(one.cards), f"{one.used_bytes // _MIB} MiB", f"{minutes} min", one.state,
               str(one.path))  # fmt: skip
        record = {"machine": one.name, "node": one.node_name, "cards": one.cards, "memoryBytes": one.used_bytes,
                  "createdUnixNs": one.created_unix_ns, "state": one.state, "file": str(one.path)}  # fmt: skip
        table.add(row, record)
    show(table, output, empty="you have no simulated machines in shared memory")


@sim.command("rm", epilog=epilog("sim rm"))
def remove(
    machines: Annotated[
        list[str] | None, typer.Argument(metavar="[MACHINE...]", help="Names of machines, as in `egpu sim list`.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all machines that no program uses.")] = False,
) -> None:
    """Remove unused simulated machines and the data on their cards. A command that needs a machine creates it again."""
    from egpu.laptop.machines import list_machines, remove_unused

    if bool(machines) == everything:
        fail("no machine is named. Name one or more, or use --all", code=EXIT_USAGE)
    found = list_machines()
    unknown = set(machines or ()) - {one.name for one in found}
    if unknown:
        fail(f"no machine is named {min(unknown)!r}. `egpu sim list` shows all names", code=EXIT_USAGE)
    chosen = [one for one in found if everything or one.name in (machines or ())]
    kept = [one for one in chosen if not remove_unused(one)]
    for one in chosen:
        note(f"{one.name}: {'kept, a program uses it' if one in kept else 'removed'}")
    if kept and not everything:
        raise typer.Exit(1)
