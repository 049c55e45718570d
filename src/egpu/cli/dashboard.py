"""`egpu dashboard`: a web page of the cluster."""

from typing import Annotated

import typer

from egpu.cli.components import NAMESPACE, Kubeconfig, LogFormat, LogLevel, run_component
from egpu.cli.usage_options import TokenFile, Usage


def dashboard(
    kubeconfig: Kubeconfig = None,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT for browsers. TLS, except on loopback. Port 0: any free port.")
    ] = "127.0.0.1:8085",
    node_policy: Annotated[str, typer.Option(help="Policy that ranks nodes, as set on the extender.")] = "default",
    card_policy: Annotated[str, typer.Option(help="Policy that ranks cards, as set on the extender.")] = "default",
    namespace: Annotated[str, typer.Option(help="Namespace of the extender's Lease.")] = NAMESPACE,
    lease: Annotated[
        str, typer.Option(help="Lease of the extender. It also stores the typical requests of jobs.")
    ] = "elastic-gpu-extender",
    usage: Usage = None,
    token_file: TokenFile = None,
    ask_agents: Annotated[
        bool, typer.Option("--ask-agents", help="Read GPU usage from all agents in --namespace.")
    ] = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Serve a read-only web page of the cluster. Users see only objects that the API server lets them list."""
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
    run_component("dashboard", run, config, (log_level, log_format), answers=True)
