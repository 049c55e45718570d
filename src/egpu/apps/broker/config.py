"""Settings of a broker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from egpu.adapters.pool.security import Credentials

PORT = 7433


@dataclass(frozen=True)
class BrokerConfig:
    """`listen` for programs and servers alike; beyond loopback only with TLS. `health` serves /healthz and /readyz,
    beyond loopback in TLS; "" for none. /metrics needs the bearer token in `metrics_token_file`, read again for each
    request; None: nobody gets it. For `settle_seconds` after its start a lease may be "not known yet". For
    `gather_seconds`, in which servers return, "no place" is not final."""

    credentials: Credentials
    listen: str = f"127.0.0.1:{PORT}"
    health: str = ""
    metrics_token_file: Path | None = None
    policy: str = "binpack"
    tick_seconds: float = 0.1
    settle_seconds: float = 30.0
    gather_seconds: float = 5.0
    max_connections: int = 20_000
