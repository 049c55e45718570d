"""The broker: one pool over all servers. Takes requests, and gives leases.

    app         puts it together: listens, and sends each caller to the right session
    sessions    a program's connection (acquire, attach, renew, resize, release, lists), and a server's (reports in,
                orders out)
    service     the pool (`egpu.core.leasing.pool`) with what waits for it to change
    metrics     what it tells Prometheus
    config      what it is told when it starts

There is no file: a broker that starts learns everything from its servers' reports (`egpu.core.leasing.pool` says why
that is safe). Until SETTLE_SECONDS have passed, a lease that it does not know is "not known yet", and its holder asks
again.
"""

from egpu.apps.broker.app import Broker, run
from egpu.apps.broker.config import BrokerConfig

__all__ = ["Broker", "BrokerConfig", "run"]
