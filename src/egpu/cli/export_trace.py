"""`egpu export-trace`: writes a live cluster to files for `egpu simulate`."""

from pathlib import Path
from typing import Annotated

import typer

from egpu.adapters.traces import write_nodes, write_pods
from egpu.cli.components import Kubeconfig
from egpu.cli.output import note
from egpu.cli.snapshot import load_from
from egpu.core.replay.export import machines_of, trace_of


def export_trace(
    kubeconfig: Kubeconfig = None,
    nodes: Annotated[Path, typer.Option(help="File for the nodes.")] = Path("nodes.csv"),
    pods: Annotated[Path, typer.Option(help="File for the pods.")] = Path("pods.csv"),
) -> None:
    """Write a cluster's nodes and GPU requests to CSV files for `egpu simulate`. Names of pods are left out."""
    snapshot = load_from(kubeconfig)
    machines = machines_of(snapshot.cache, snapshot.nodes)
    shapes, gangs = trace_of(snapshot.cache, snapshot.pods)
    write_nodes(nodes, machines)
    write_pods(pods, shapes, gangs)
    left_out = len(snapshot.pods) - len(shapes)
    note(f"wrote {len(machines)} nodes to {nodes}, {len(shapes)} pods to {pods}")
    if left_out:
        note(f"left out {left_out} pods: their demands are invalid, or have no size without a card (TFLOPS)")
