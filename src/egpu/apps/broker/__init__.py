"""The broker: one pool over all servers. Takes requests, and grants leases.

    app         assembles a broker: listens, and passes each caller to its session
    sessions    a program's connection (acquire, attach, renew, resize, release, lists), and a server's (reports in,
                orders out)
    service     the pool (`egpu.core.leasing.pool`), with callers that wait for it to change
    views       leases and servers as callers see them
    metrics     the broker's Prometheus metrics
    config      its settings

The broker keeps no file: it learns everything from its servers' reports (`egpu.core.leasing.pool` says why that is
safe). Until SETTLE_SECONDS have passed, an unknown lease is "not known yet", and its program asks again."""

from egpu.apps.broker.app import Broker, run
from egpu.apps.broker.config import BrokerConfig

__all__ = ["Broker", "BrokerConfig", "run"]
