"""What `egpu webhook` can be told."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WebhookConfig:
    """`listen` serves health and metrics in plain HTTP; `webhook_listen` serves admission in HTTPS.

    The certificate comes from two files, or (none given) from the Secret that the controller writes and renews.
    """

    kubeconfig: Path | None = None
    listen: str = "127.0.0.1:8081"
    webhook_listen: str = "127.0.0.1:9443"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_secret: str = "elastic-gpu-webhook-tls"  # noqa: S105  the name of a Secret
    namespace: str = "elastic-gpu-system"
    scheduler_user: tuple[str, ...] = ()
    """Users whose Bindings may give out cards; none: the extender's service account in `namespace`."""

    vocabularies: tuple[str, ...] = ()
    """The optional vocabularies that are turned on; the agents must be told the same."""

    @property
    def schedulers(self) -> tuple[str, ...]:
        return self.scheduler_user or (f"system:serviceaccount:{self.namespace}:elastic-gpu-extender",)
