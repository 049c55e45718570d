"""`egpu inspect`: a slice, as the files of its interposer, executor and agent describe it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from egpu.cli.output import EXIT_USAGE, Format, Table, fail, note, say, show, show_value
from egpu_base.errors import NotFound

if TYPE_CHECKING:  # slow to load, and only this command needs it
    from egpu.cli.inspection import Inspection


def inspect(
    what: Annotated[
        str | None,
        typer.Argument(help="Name of a slice, as in the list, or its directory. Default: list all slices."),
    ] = None,
    state_dir: Annotated[
        list[Path] | None,
        typer.Option(
            help="Directory with slices of an agent, `egpu serve` or `egpu run`. Repeatable. Default: those of all."
        ),
    ] = None,
    output: Annotated[
        Format, typer.Option("-o", "--output", metavar="FORMAT", help="table, wide, json or yaml.")
    ] = Format.TABLE,
) -> None:
    """Show a slice's limits, processes, executor and files. Nothing is changed."""
    from egpu.cli import inspection, inspection_views

    roots = state_dir or inspection.default_roots()
    if state_dir and (missing := [root for root in state_dir if not root.is_dir()]):
        fail(f"--state-dir: there is no directory {missing[0]}. Give an existing one", code=EXIT_USAGE)
    if what is None:
        show(
            inspection_views.overview(inspection.inspect_all(roots)),
            output,
            empty=f"no slices below {', '.join(map(str, roots))}",
        )
        return
    try:
        one = inspection.inspect_slice(inspection.find(what, roots))
    except NotFound as error:
        fail(str(error))
    tables = {
        "policy": inspection_views.policy_table(one),
        "usage": inspection_views.usage_table(one),
        "processes": inspection_views.process_table(one),
    }
    if output.for_people:
        _print(one, tables, output)
    else:
        show_value(_record(one, tables), output)


def _print(one: Inspection, tables: Mapping[str, Table], output: Format) -> None:
    say(f"{one.kind} {one.directory.name}: {one.owner}\n  {one.directory}")
    if one.executor is not None:
        state = "runs" if one.executor.running else "is gone"
        ready = "ready" if one.executor.ready else "not ready"
        say(f"\nexecutor: pid {one.executor.pid} {state}, {ready}, {one.executor.sessions} sessions")
        say(f"  {one.executor.directory}")
        if one.executor.last_words:
            say(f"  last log line: {one.executor.last_words}")
    generation = f", generation {one.policy.generation}" if one.policy else ""
    titles = {
        "policy": f"limits ({one.policy_file.name}{generation})",
        "usage": f"reported use ({one.usage_file.name})",
        "processes": "use by process",
    }
    for name, table in tables.items():
        if table.rows:
            say(f"\n{titles[name]}")
            show(table, output)
    say("\n".join(["\nfiles", *(f"  {name}  {what}" for name, what in one.files.items())]))
    for file, problem in one.problems.items():
        note(f"{file}: {problem}", label="damaged:")


def _record(one: Inspection, tables: Mapping[str, Table]) -> Mapping[str, Any]:
    executor = one.executor
    return {
        "directory": str(one.directory),
        "kind": str(one.kind),
        "owner": one.owner,
        "record": one.record,
        "policy": {
            "file": one.policy_file.name,
            "generation": one.policy.generation if one.policy else None,
            "devices": tables["policy"].records,
        },
        "usage": {"file": one.usage_file.name, "devices": tables["usage"].records},
        "processes": tables["processes"].records,
        "executor": executor
        and {
            "directory": str(executor.directory),
            "pid": executor.pid,
            "running": executor.running,
            "ready": executor.ready,
            "sessions": executor.sessions,
            "lastWords": executor.last_words,
        },
        "files": dict(one.files),
        "problems": dict(one.problems),
    }
