"""What a dashboard is told when it starts."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DashboardConfig:
    """`node_policy` and `card_policy` are the extender's; in `namespace` is its `lease`, with the job mix that it has
    learned. `kubeconfig` None: the pod's service account, $KUBECONFIG or ~/.kube/config. `usage`: where agents publish
    what slices use, or a Prometheus that has scraped them; `token_file` has the bearer token that they ask for.
    `ask_agents`: those of this installation are asked, wherever their pods are."""

    kubeconfig: Path | None = None
    listen: str = "127.0.0.1:8085"
    node_policy: str = "default"
    card_policy: str = "default"
    namespace: str = "elastic-gpu-system"
    lease: str = "elastic-gpu-extender"
    usage: tuple[str, ...] = ()
    token_file: Path | None = None
    ask_agents: bool = False
