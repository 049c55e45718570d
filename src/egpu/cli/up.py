"""`egpu up`: a cluster of simulated GPUs on this machine, until Ctrl-C."""

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from egpu.cli.components import LogLevel, Vocabularies, optional_vocabularies
from egpu.cli.embedding import steps
from egpu.cli.output import Format, note, show_value
from egpu_base.runtime.foreground import run_until_signal, until_cancelled

if TYPE_CHECKING:
    from egpu.laptop.cluster import Cluster, ClusterConfig

DEFAULT_PROFILE = "A100-80G"

Nodes = Annotated[int, typer.Option(min=1, help="Number of nodes with GPUs.")]
Gpus = Annotated[int, typer.Option(min=0, help="Number of GPUs of each node.")]
Profile = Annotated[
    list[str],
    typer.Option(help="GPU model to simulate, as in `egpu-sim profiles`. Repeatable: nodes use the models in turn."),
]


def up(
    nodes: Nodes = 2,
    gpus: Gpus = 4,
    cpu_nodes: Annotated[int, typer.Option(min=0, help="Number of nodes without GPUs, for pods of the pool.")] = 0,
    profile: Profile = [DEFAULT_PROFILE],
    kubeconfig: Annotated[Path | None, typer.Option(help="Also write the kubeconfig to this file.")] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Directory for logs and state. Default: temporary, removed at the end.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the API server. 0: any free port.")] = 0,
    node_policy: Annotated[str, typer.Option(help="Policy that ranks nodes: price, binpack, spread, …")] = "default",
    card_policy: Annotated[str, typer.Option(help="Policy that ranks the cards of a node.")] = "default",
    vocabularies: Vocabularies = "",
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File that names a program for each image. The built-in table serves all other images.",
        ),
    ] = None,
    kubernetes: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="EGPU_KUBERNETES",
            help="Directory with the programs etcd, kube-apiserver, kube-controller-manager and kube-scheduler. "
            "They replace the simulated control plane.",
        ),
    ] = None,
    log_level: LogLevel = "info",
    output: Annotated[
        Format, typer.Option("-o", "--output", metavar="FORMAT", help="table (for people), json or yaml.")
    ] = Format.TABLE,
) -> None:
    """Start a cluster of simulated GPUs for kubectl. It runs until Ctrl-C."""
    from egpu.laptop.cluster import ClusterConfig
    from egpu_base.runtime import logs

    logs.configure("cluster", level="warning" if log_level == "info" else log_level)
    config = ClusterConfig(
        nodes=nodes,
        cards_per_node=gpus,
        cpu_nodes=cpu_nodes,
        profiles=tuple(profile),
        port=port,
        state_dir=state_dir,
        kubeconfig=kubeconfig,
        node_policy=node_policy,
        card_policy=card_policy,
        vocabularies=optional_vocabularies(vocabularies),
        images=images,
        kubernetes=kubernetes,
        log_level=log_level,
    )
    raise typer.Exit(run_until_signal(_stay_up(config, output), note=note))


async def _stay_up(config: "ClusterConfig", output: Format) -> None:
    from egpu.laptop.cluster import cluster
    from egpu.laptop.dashboard import start_dashboard

    began = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        with steps() as progress:
            running = await stack.enter_async_context(cluster(config, progress))
            progress("starting the dashboard")
            dashboard = await start_dashboard(running)
        if output.for_people:
            _introduce(running, time.monotonic() - began, dashboard)
        else:
            facts = {"kubeconfig": str(running.kubeconfig), "server": running.plane.url, "dashboard": dashboard}
            metrics = {name: url.replace("/readyz", "/metrics") for name, url in running.ready_urls.items()}
            more = {"nodes": list(running.node_names), "stateDir": str(running.state_dir), "metrics": metrics}
            show_value({**facts, **more}, output)
        sys.stdout.flush()
        await until_cancelled()


def _introduce(running: "Cluster", seconds: float, dashboard: str) -> None:
    config = running.config
    cards = f"{config.nodes} × {config.cards_per_node} simulated GPUs ({', '.join(config.profiles)})"
    note(f"after {seconds:.1f} s: {cards}", label="ready", style="green")
    note(f"logs are in {running.state_dir / 'logs'}; Ctrl-C ends the cluster\n")
    note(f"read-only, in a browser: {dashboard}\n", label="dashboard", style="green")
    # Scripts read this line, so it goes to stdout.
    sys.stdout.write(f"export KUBECONFIG={config.kubeconfig or running.kubeconfig}\n")
    note(
        "\nthen, in another terminal:\n  kubectl get egpu\n  kubectl apply -f examples/seed-vcuda.yaml\n  egpu get gpus"
    )
