"""`egpu export-trace`: a live cluster as files for `egpu simulate`."""

from pathlib import Path
from typing import Annotated

import typer

from egpu.adapters.traces import write_nodes, write_pods
from egpu.cli.components import Kubeconfig
from egpu.cli.output import note
from egpu.cli.snapshot import load_from
from egpu.core.simulation.export import machines_of, trace_of


def export_trace(
    kubeconfig: Kubeconfig = None,
    nodes: Annotated[Path, typer.Option(help="Write the nodes here.")] = Path("nodes.csv"),
    pods: Annotated[Path, typer.Option(help="Write the pods here.")] = Path("pods.csv"),
) -> None:
    """Write the nodes and what the pods ask for as CSV files, for `egpu simulate`. Names of pods are not written."""
    snapshot = load_from(kubeconfig)
    machines = machines_of(snapshot.cache, snapshot.nodes)
    shapes, gangs = trace_of(snapshot.cache, snapshot.pods)
    write_nodes(nodes, machines)
    write_pods(pods, shapes, gangs)
    left_out = len(snapshot.pods) - len(shapes)
    note(f"{len(machines)} nodes in {nodes}, {len(shapes)} pods in {pods}")
    if left_out:
        note(f"{left_out} pods are left out: what they ask for cannot be said without naming a card")
