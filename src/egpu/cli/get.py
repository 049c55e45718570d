"""`egpu get nodes|gpus|claims|pods`: lists of a cluster. `egpu get leases|servers`: lists of a pool."""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from egpu.adapters.kubernetes.announced_usage import UsageSources, given_or_announced
from egpu.cli import pool, views
from egpu.cli.components import Kubeconfig
from egpu.cli.output import EXIT_USAGE, Format, Table, console, fail, note, show
from egpu.cli.selecting import KEYS, Selection, What, summary
from egpu.cli.snapshot import Snapshot, load_allowed_from, reading
from egpu.core.node_condition import not_offering
from egpu.core.view import SliceKey, SliceUsage
from egpu_base.errors import CorruptData, Refused, Unavailable

OTHER_NAMES = {
    "node": What.NODES,
    "no": What.NODES,
    "gpu": What.GPUS,
    "card": What.GPUS,
    "cards": What.GPUS,
    "egpu": What.GPUS,
    "claim": What.CLAIMS,
    "egpuc": What.CLAIMS,
    "pod": What.PODS,
    "po": What.PODS,
    "lease": What.LEASES,
    "server": What.SERVERS,
}
"""Singular forms and kubectl's short names."""

LISTS = "|".join(What)
NO_SOURCES = UsageSources()

Usage = Annotated[
    list[str] | None,
    typer.Option(metavar="URL|FILE", help="Source of pods' parked memory, as in `egpu bill`. Repeatable."),
]
TokenFile = Annotated[Path | None, typer.Option(help="Bearer token file, for agents that require one.")]


def _what(text: str) -> What:
    try:
        return OTHER_NAMES.get(text.lower()) or What(text.lower())
    except ValueError:
        fail(f"{text!r} cannot be listed. Use egpu get {LISTS}", code=EXIT_USAGE)


def _listed() -> list[str]:
    return [str(one) for one in What]


def get(
    what: Annotated[
        str,
        typer.Argument(
            metavar="[WHAT]",
            help="nodes, gpus, claims or pods of a cluster; leases or servers of a pool.",
            autocompletion=_listed,
            show_default=False,
        ),
    ] = "",
    kubeconfig: Kubeconfig = None,
    namespace: Annotated[
        str | None, typer.Option("-n", "--namespace", help="Claims and pods of this namespace. Default: all.")
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("-A", "--all-namespaces", help="Claims and pods of all namespaces (the default).")
    ] = False,
    output: Annotated[
        Format, typer.Option("-o", "--output", metavar="FORMAT", help="table, wide, json or yaml.")
    ] = Format.TABLE,
    node: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only rows of this node. Wildcards: * and ?. Repeatable.")
    ] = None,
    selector: Annotated[
        str, typer.Option("-l", "--selector", help="Only rows with these labels. For cards: labels of the node.")
    ] = "",
    model: Annotated[str, typer.Option(help="Only cards and nodes with this text in the model name.")] = "",
    mode: Annotated[str, typer.Option(help="Only cards with this MODE: free, exclusive (whole card), vcuda, …")] = "",
    free: Annotated[bool, typer.Option("--free", help="Only free cards that take work, or nodes with one.")] = False,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Also show later changes, until Ctrl-C.")] = False,
    usage: Usage = None,
    token_file: TokenFile = None,
    address: pool.PoolAddress = None,
    secret_file: pool.SecretFile = None,
    tls_ca: pool.TlsCa = None,
    tls_cert: pool.TlsCert = None,
    tls_key: pool.TlsKey = None,
) -> None:
    """List cards, nodes, claims or pods of a cluster, or leases or servers of a pool."""
    if not what:
        fail(f"no kind is given. Use egpu get {LISTS}", code=EXIT_USAGE)
    if namespace is not None and all_namespaces:
        fail("--namespace and --all-namespaces exclude each other. Use one of them", code=EXIT_USAGE)
    wanted = _what(what)
    selection = Selection(node=node or (), labels=selector, model=model, mode=mode, free=free)
    selection.check(wanted)

    if wanted in (What.LEASES, What.SERVERS):
        show_table = pool.leases_table if wanted is What.LEASES else pool.servers_table
        found = pool.credentials(secret_file, tls_ca, tls_cert, tls_key)
        show(show_table(address, found), output, empty=f"no {wanted} found")
        return
    if watch:
        from egpu.cli.watching import watch as watch_it  # slow to load, and only --watch needs it

        if not console.is_terminal or output is not Format.TABLE:
            fail("--watch needs a terminal and -o table. In scripts, use kubectl get -w", code=EXIT_USAGE)
        with reading():
            asyncio.run(watch_it(kubeconfig, partial(_selected, wanted, selection, namespace), key=KEYS[wanted]))
    snapshot = load_allowed_from(kubeconfig, namespace)
    sources = given_or_announced(usage or (), token_file, kubeconfig)
    table = _selected(wanted, selection, namespace, snapshot, sources)
    show(table, output, empty=f"no {wanted} found")
    if output.for_people and table.records:
        note(summary(wanted, table.records))
    if snapshot.lack:
        note(snapshot.lack, label="not shown:", style="yellow")
    elif wanted in (What.GPUS, What.NODES):
        for problem in snapshot.cache.problems():
            note(problem, label="problem:")
        for one in snapshot.nodes if wanted is What.NODES else ():
            if (said := not_offering(one)) is not None:
                note(f"{one.name}: {said[1]}", label="problem:")


def _used(snapshot: Snapshot, sources: UsageSources) -> Mapping[SliceKey, SliceUsage] | None:
    """Return what slices say of their use, if any of them can be parked; None if there is no source."""
    given = [one for pod in snapshot.pods if not pod.finished and (one := views.allocation_of(pod)) is not None]
    if not sources.urls or not any(one.parkable for each in given for one in each.containers.values()):
        return None
    from egpu.adapters.slices.published import read_usage  # slow to load, and few clusters need it
    from egpu.apps.dashboard.usage_sources import read_token

    try:
        return read_usage(sources.urls, token=read_token(sources.token_file))
    except (CorruptData, Refused, Unavailable) as error:
        note(f"parked memory: {error}", label="not shown:", style="yellow")
        return None


def _selected(
    what: What, selection: Selection, namespace: str | None, snapshot: Snapshot, sources: UsageSources = NO_SOURCES
) -> Table:
    return selection.of(what, _table(what, snapshot, namespace, sources), snapshot)


def _table(what: What, snapshot: Snapshot, namespace: str | None, sources: UsageSources) -> Table:
    match what:
        case What.NODES:
            return views.nodes(snapshot)
        case What.GPUS:
            return views.gpus(snapshot)
        case What.CLAIMS:
            return views.claims(snapshot, namespace)
        case What.PODS:
            return views.pods(snapshot, namespace, _used(snapshot, sources))
        case What.LEASES | What.SERVERS:
            raise AssertionError(f"{what} belong to a pool, not to a cluster")
