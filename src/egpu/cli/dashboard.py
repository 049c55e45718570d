"""`egpu dashboard`: the cluster as a web page."""

from pathlib import Path
from typing import Annotated

import typer

from egpu.cli.components import NAMESPACE, Kubeconfig, LogLevel, run_component


def dashboard(
    kubeconfig: Kubeconfig = None,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT for browsers; beyond loopback in TLS. Port 0 takes a free one.")
    ] = "127.0.0.1:8085",
    node_policy: Annotated[str, typer.Option(help="The extender's: would it fit, and where?")] = "default",
    card_policy: Annotated[str, typer.Option(help="Likewise for cards.")] = "default",
    namespace: Annotated[str, typer.Option(help="Namespace of the extender's lease.")] = NAMESPACE,
    lease: Annotated[str, typer.Option(help="That lease, with the job mix.")] = "elastic-gpu-extender",
    usage: Annotated[
        list[str] | None, typer.Option(metavar="URL|FILE", help="Where use is published, as for `egpu bill`.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="A bearer token, for agents that ask for one.")] = None,
    ask_agents: Annotated[
        bool, typer.Option("--ask-agents", help="Ask the agents of --namespace what is used, wherever their pods are.")
    ] = False,
    log_level: LogLevel = "info",
) -> None:
    """The cluster as a web page: read-only, for each as much as the API server lets him list."""
    from egpu.apps.dashboard import DashboardConfig, run

    config = DashboardConfig(
        kubeconfig=kubeconfig,
        listen=listen,
        node_policy=node_policy,
        card_policy=card_policy,
        namespace=namespace,
        lease=lease,
        usage=tuple(usage or ()),
        token_file=token_file,
        ask_agents=ask_agents,
    )
    run_component("dashboard", run, config, log_level, answers=True)
