"""What a broker is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from egpu.adapters.pool.security import Credentials

PORT = 7433


@dataclass(frozen=True)
class BrokerConfig:
    """`listen` for programs and servers alike; beyond loopback only with TLS. `health` serves /healthz and /readyz,
    beyond loopback in TLS; "" for none. /metrics is there for whoever shows the bearer token in `metrics_token_file`,
    read again for each; None: for nobody. For `settle_seconds` after its start a lease may be "not known yet"; for
    `gather_seconds`, in which servers come back, there is no "no place" that would be final."""

    credentials: Credentials
    listen: str = f"127.0.0.1:{PORT}"
    health: str = ""
    metrics_token_file: Path | None = None
    policy: str = "binpack"
    tick_seconds: float = 0.1
    settle_seconds: float = 30.0
    gather_seconds: float = 5.0
    max_connections: int = 20_000
