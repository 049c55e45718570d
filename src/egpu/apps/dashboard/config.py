"""Settings of a dashboard."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DashboardConfig:
    """`node_policy` and `card_policy` are the extender's; its `lease` in `namespace` has the learned job mix.
    `kubeconfig` None: the pod's service account, $KUBECONFIG or ~/.kube/config. `usage`: addresses of agents that
    publish use, or of a Prometheus that scrapes them; `token_file` has the bearer token for them. `ask_agents`: ask
    this installation's agents, wherever their pods are."""

    kubeconfig: Path | None = None
    listen: str = "127.0.0.1:8085"
    node_policy: str = "default"
    card_policy: str = "default"
    namespace: str = "elastic-gpu-system"
    lease: str = "elastic-gpu-extender"
    usage: tuple[str, ...] = ()
    token_file: Path | None = None
    ask_agents: bool = False
