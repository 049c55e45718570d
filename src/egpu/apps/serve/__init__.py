"""The node daemon of the pool: this machine's cards, as the broker orders.

    link       the connection to the broker: reports out, orders in, again and again
    keeper     what runs against what was ordered: starts, resizes, ends, watches executors
    data       programs elsewhere come in with a lease token, and are joined to their executor

Killed at any moment it leaves its executors running, and finds them again when it starts (pid and start time). Without
a broker everything goes on as it was last ordered. NOT here: deciding anything about leases.
"""

from egpu.apps.serve.app import Server, run
from egpu.apps.serve.config import ServeConfig

__all__ = ["ServeConfig", "Server", "run"]
