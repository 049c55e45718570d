"""What a broker is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass

from egpu.adapters.pool.security import Credentials

PORT = 7433


@dataclass(frozen=True)
class BrokerConfig:
    """`listen` for programs and servers alike; beyond loopback only with TLS. `health` serves /healthz, /readyz and
    /metrics; "" for none. For `settle_seconds` after its start a lease may be "not known yet"; for `gather_seconds`, in
    which servers come back, there is no "no place" that would be final."""

    credentials: Credentials
    listen: str = f"127.0.0.1:{PORT}"
    health: str = ""
    policy: str = "binpack"
    tick_seconds: float = 0.1
    settle_seconds: float = 30.0
    gather_seconds: float = 5.0
    max_connections: int = 20_000
