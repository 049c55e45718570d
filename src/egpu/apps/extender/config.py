"""Settings of `egpu extender`."""

import socket
from dataclasses import dataclass, field
from pathlib import Path

from egpu.core.policies.registry import DEFAULT_POLICY


@dataclass(frozen=True)
class ExtenderConfig:
    """`listen` is for kube-scheduler, in TLS with `tls_cert` and `tls_key`; its own certificate must come from
    `client_ca`. `health_listen` serves health, metrics and explanations. `namespace` and `lease` name the Lease that
    lets one extender write at a time. With `leader_elect` a second extender waits for its turn; without it a new one
    takes over at once and the old one ends. With `follow`, the Lease of kube-schedulers in `namespace`, the extender
    beside the leading kube-scheduler takes over: the one on its host."""

    kubeconfig: Path | None = None
    listen: str = "127.0.0.1:3456"
    health_listen: str = "127.0.0.1:8084"
    node_policy: str = DEFAULT_POLICY
    card_policy: str = DEFAULT_POLICY
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None
    leader_elect: bool = False
    follow: str = ""
    host: str = field(default_factory=socket.gethostname)
    namespace: str = "elastic-gpu-system"
    lease: str = "elastic-gpu-extender"
