"""What `egpu controller` can be told."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ControllerConfig:
    """`webhook_url` (the webhook runs on this machine) or `webhook_service` (NAME[:PORT] in `namespace`) says where the
    API server finds the webhook; with neither, the webhook configurations and the certificate are left alone.
    """

    kubeconfig: Path | None = None
    listen: str = "127.0.0.1:8082"
    namespace: str = "elastic-gpu-system"
    webhook_url: str | None = None
    webhook_service: str | None = None
    tls_secret: str = "elastic-gpu-webhook-tls"  # noqa: S105  the name of a Secret
    exclude_namespaces: tuple[str, ...] = ("kube-system", "kube-public", "kube-node-lease")
    leader_elect: bool = False
