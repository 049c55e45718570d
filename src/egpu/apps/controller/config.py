"""Settings of `egpu controller`."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ControllerConfig:
    """`webhook_service` (NAME[:PORT] in `namespace`) is the webhook's address for the API server; without it the
    controller manages neither its certificate nor the webhook configurations. `extender_tls_secret` names the Secret
    for the certificates of extender and kube-scheduler; without it the controller issues none. `team_label` is the
    label of pods and claims that groups the bill, beside their namespace."""

    kubeconfig: Path | None = None
    listen: str = "127.0.0.1:8082"
    namespace: str = "elastic-gpu-system"
    webhook_service: str | None = None
    tls_secret: str = "elastic-gpu-webhook-tls"  # noqa: S105  the name of a Secret
    extender_tls_secret: str | None = None
    leader_elect: bool = False
    team_label: str = "team"
