"""The broker: one pool over all servers. Takes wishes, and gives leases.

    door       who comes in (TLS or secret), and which of the two sides they are
    clients    a program's connection: acquire, attach, renew, resize, release, lists
    servers    a server's connection: reports in, orders out
    desk       the pool (`egpu.core.leasing.leases`) with what waits for it to change

There is no file: a broker that starts learns everything from its servers' reports (`egpu.core.leasing.leases` says why
that is safe). Until SETTLE_SECONDS have passed, a lease that it does not know is "not known yet", and its holder asks
again.
"""

from egpu.apps.broker.app import Broker, run
from egpu.apps.broker.config import BrokerConfig

__all__ = ["Broker", "BrokerConfig", "run"]
