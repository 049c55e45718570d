"""`egpu get --watch`: the table once, then changed rows, as in `kubectl get --watch`."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.cli.layout import Grid
from egpu.cli.output import Table, console, show_rows
from egpu.cli.snapshot import Snapshot, snapshot_of
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.kubernetes import Caches, Client
from egpu_base.runtime import logs

GATHER_SECONDS: Final = 1.0
"""Changes are gathered for this time, or for REST times the time of one update if that is longer."""
REST: Final = 4.0
GONE: Final = "gone"
STATES: Final = ("state", "status", "phase")
"""Columns that show GONE for a deleted row."""

Row = tuple[Mapping[str, Any], Sequence[Any]]


class Changes:
    """Compares tables. Returns new and changed rows, then deleted ones."""

    def __init__(self, key: Sequence[str]) -> None:
        self._key = key
        self._rows: dict[tuple[Any, ...], Row] = {}

    def see(self, table: Table) -> Table:
        rows = {tuple(record[name] for name in self._key): (record, row)
                for record, row in zip(table.records, table.rows, strict=True)}  # fmt: skip
        changed = replace(table, rows=[], records=[])
        for key, (record, row) in rows.items():
            if key not in self._rows or self._rows[key][0] != record:
                changed.add(row, record)
        states = {at for at, name in enumerate(table.columns) if name in STATES}
        for key in self._rows.keys() - rows.keys():
            record, row = self._rows[key]
            changed.add([GONE if at in states else cell for at, cell in enumerate(row)], record)
        self._rows = rows
        return changed


async def watch(kubeconfig: Path | None, table_of: Callable[[Snapshot], Table], *, key: Sequence[str]) -> None:
    """Watch until cancelled. `key`: the fields that identify a row. Raises Unavailable, Refused, NotFound."""
    logs.configure("get", level="error")  # broken watches restart; users need no message
    async with Client.from_kubeconfig(kubeconfig) as client, asyncio.TaskGroup() as group:
        caches, changed = Caches(client), asyncio.Event()
        nodes, gpus, classes = caches.add(Node), caches.add(ElasticGPU), caches.add(ElasticGPUClass)
        claims, pods = caches.add(ElasticGPUClaim), caches.add(Pod)
        for kind in (nodes, gpus, classes, claims, pods):
            kind.on_change(lambda _: changed.set())
        await client.list(ElasticGPUClass)  # raises errors, which a watch would retry for ever
        group.create_task(caches.run())
        await caches.synced()
        changes, above = Changes(key), None
        while True:
            changed.clear()
            began = time.thread_time()
            above = show_changes(changes.see(table_of(snapshot_of(nodes, gpus, classes, claims, pods))).narrow(), above)
            await asyncio.sleep(max(GATHER_SECONDS, REST * (time.thread_time() - began)))
            await changed.wait()


def show_changes(table: Table, above: Grid | None) -> Grid:
    """Print rows in the columns of `above`, and return the layout for the next ones. A row that is too wide, and all
    later ones, are printed as blocks."""
    if above is None or table.rows:
        above = show_rows(table, spared=True, stacked=True, above=above)
    console.file.flush()
    return above
