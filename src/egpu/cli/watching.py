"""`egpu get --watch`: the table once, then the rows that change, as `kubectl get --watch` shows them."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from egpu.adapters.kubernetes import Caches, Client
from egpu.api.kubernetes import Node, Pod
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.cli.layout import Grid
from egpu.cli.output import Table, console, show_rows
from egpu.cli.snapshot import Snapshot, snapshot_of
from egpu.runtime import logs

GATHER_SECONDS: Final = 1.0
"""Changes are gathered for so long, and so many times as long as looking takes."""
REST: Final = 4.0
GONE: Final = "gone"
STATES: Final = ("state", "status", "phase")
"""Columns in which a row that is no more says so."""

Row = tuple[Mapping[str, Any], Sequence[Any]]


class Changes:
    """Tables in, rows out: those that are new or say something else than before, and at last those that are gone."""

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
    """Until it is cancelled. `key`: what of a record says which row it is. Raises Unavailable, Refused, NotFound."""
    logs.configure("get", level="error")  # a watch that breaks is begun again, and nobody has to know
    async with Client.from_kubeconfig(kubeconfig) as client, asyncio.TaskGroup() as group:
        caches, changed = Caches(client), asyncio.Event()
        nodes, gpus, classes = caches.add(Node), caches.add(ElasticGPU), caches.add(ElasticGPUClass)
        claims, pods = caches.add(ElasticGPUClaim), caches.add(Pod)
        for kind in (nodes, gpus, classes, claims, pods):
            kind.on_change(lambda _: changed.set())
        await client.list(ElasticGPUClass)  # says what is wrong, which a watch would try again for ever
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
    """Print the rows below those of `above`; returns what the next ones go below. Once a row has no room beside the
    names of its columns, it and all that follow stand by themselves."""
    if above is None or table.rows:
        above = show_rows(table, spared=True, stacked=True, above=above)
    console.file.flush()
    return above
