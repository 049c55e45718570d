"""Settings of `egpu webhook`."""

from dataclasses import dataclass
from pathlib import Path

from egpu.core.schedulers import ANY, Schedulers


@dataclass(frozen=True)
class WebhookConfig:
    """`listen` serves health and metrics in plain HTTP; `webhook_listen` serves admission in HTTPS.

    The certificate comes from two files, or (none given) from the Secret that the controller writes and renews."""

    kubeconfig: Path | None = None
    listen: str = "127.0.0.1:8081"
    webhook_listen: str = "127.0.0.1:9443"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_secret: str = "elastic-gpu-webhook-tls"  # noqa: S105  the name of a Secret
    namespace: str = "elastic-gpu-system"
    scheduler_user: tuple[str, ...] = ()
    """Users whose Bindings may allocate cards; None: the extender's service account in `namespace`."""

    vocabularies: tuple[str, ...] = ()
    """The enabled optional vocabularies; the agents need the same."""

    schedulers: Schedulers = ANY
    """The schedulers that may place GPU pods, and the one that the webhook names in them."""

    @property
    def users(self) -> tuple[str, ...]:
        return self.scheduler_user or (f"system:serviceaccount:{self.namespace}:elastic-gpu-extender",)
