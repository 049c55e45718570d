"""`egpu bill`: GPU time that was allocated or requested but not used, with proposed remedies. It changes nothing."""

import csv
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from egpu.adapters.kubernetes.announced_usage import given_or_announced
from egpu.adapters.slices.published import read_usage
from egpu.apps.dashboard.usage_sources import read_token
from egpu.cli.components import Kubeconfig
from egpu.cli.output import Format, Table, note, show
from egpu.cli.snapshot import Snapshot, load_from
from egpu.cli.usage_options import TokenFile, Usage
from egpu.core.bill import Bill, Line, Remedy, bill_of, remedies, summed
from egpu.core.view import ClusterView, cluster_view

HOUR = 3600.0


class BillFormat(StrEnum):
    """The values of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


def bill(
    kubeconfig: Kubeconfig = None,
    namespace: Annotated[
        str | None, typer.Option("-n", "--namespace", help="Show only this namespace. Default: all.")
    ] = None,
    by: Annotated[
        str,
        typer.Option(metavar="WHAT", help="Show sums by `namespace`, or by the values of the label with this name."),
    ] = "",
    usage: Usage = None,
    token_file: TokenFile = None,
    output: Annotated[
        BillFormat, typer.Option("-o", "--output", metavar="FORMAT", help="table, wide, json, yaml or csv.")
    ] = BillFormat.TABLE,
) -> None:
    """Show GPU-hours lost to waiting pods, unused claims and idle or under-used slices, and the cheapest remedies."""
    snapshot = load_from(kubeconfig, as_extender=True)
    sources = given_or_announced(usage or (), token_file, kubeconfig)
    view = _view(snapshot, sources.urls, read_token(sources.token_file))
    found = bill_of(view)
    if namespace is not None:
        found = Bill(tuple(line for line in found.lines if line.namespace == namespace))
    if by:
        parts = summed(found, (lambda line: line.namespace) if by == "namespace" else (lambda line: line.label(by)))
        table = _sums(by, parts)
    else:
        advice = remedies(found, snapshot.cache, snapshot.pods, [node.name for node in view.nodes])
        table = _lines(found.lines, list(advice))
    if output is BillFormat.CSV:
        _write_csv(table)
        return
    show(table, Format(output), empty="no lost GPU time found")
    if output in (BillFormat.TABLE, BillFormat.WIDE):
        note(
            f"{found.lost_gpu_seconds / HOUR:.1f} GPU-hours are lost so far,"
            f" and {found.lost_gpu_seconds_per_day / HOUR:.1f} more per day. Nothing was changed"
        )
        if not sources.urls:
            note("the usage of slices is not known. Give --usage to find idle and under-used slices")


def _view(snapshot: Snapshot, sources: Sequence[str], token: str) -> ClusterView:
    return cluster_view(
        snapshot.cache,
        nodes=snapshot.nodes,
        pods=snapshot.pods,
        claims=snapshot.claims,
        gpus=snapshot.gpus,
        usage=read_usage(sources, token=token),
        now=datetime.now(UTC),
        device_claims=snapshot.resource_claims,
    )


def _lines(lines: Sequence[Line], advice: Sequence[Remedy]) -> Table:
    table = Table(
        ("namespace", "name", "container", "why", "lost", "per day", "history", "remedy"),
        title="GPU-hours lost",
        right=frozenset({"lost", "per day", "history"}),
        spare=("container", "history"),
    )
    for line, remedy in zip(lines, advice, strict=True):
        table.add(
            (
                line.namespace,
                line.subject.name,
                line.slice.container if line.slice else "",
                line.cause,
                f"{line.lost_gpu_seconds / HOUR:.2f}",
                f"{line.lost_gpu_seconds_per_day / HOUR:.2f}",
                f"{line.history_seconds / HOUR:.1f} h",
                remedy.text,
            ),
            _record(line, remedy),
        )
    return table


def _record(line: Line, remedy: Remedy) -> Mapping[str, Any]:
    one = line.slice
    return {
        "namespace": line.namespace,
        "name": line.subject.name,
        "container": one.container if one else "",
        "claim": one.claim if one else "",
        "node": one.node if one else "",
        "uuid": one.uuid if one else "",
        "cause": str(line.cause),
        "gpuHoursLost": round(line.lost_gpu_seconds / HOUR, 4),
        "gpuHoursLostPerDay": round(line.lost_gpu_seconds_per_day / HOUR, 4),
        "historySeconds": round(line.history_seconds),
        "remedy": remedy.kind,
        "remedyText": remedy.text,
        "corePercent": remedy.size.core_percent if remedy.size else None,
        "memoryMiB": remedy.size.memory_mib if remedy.size else None,
        "moves": remedy.moves,
    }


def _sums(by: str, parts: Mapping[str, Bill]) -> Table:
    columns = (by, "lines", "lost", "per day")
    table = Table(columns, title="GPU-hours lost", right=frozenset(columns[1:]))
    for name, part in parts.items():
        lost, per_day = part.lost_gpu_seconds / HOUR, part.lost_gpu_seconds_per_day / HOUR
        record = {by: name, "lines": len(part.lines)}
        figures = {"gpuHoursLost": round(lost, 4), "gpuHoursLostPerDay": round(per_day, 4)}
        table.add((name or "-", str(len(part.lines)), f"{lost:.2f}", f"{per_day:.2f}"), record | figures)
    return table


def _write_csv(table: Table) -> None:
    """Write CSV. Names are untrusted, so an apostrophe precedes a text that a spreadsheet would run as a formula."""
    if table.records:
        writer = csv.DictWriter(sys.stdout, fieldnames=list(table.records[0]), lineterminator="\n")
        writer.writeheader()
        for record in table.records:
            writer.writerow({key: _harmless(value) for key, value in record.items()})


def _harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value
