"""The node daemon of the pool: this machine's cards, as the broker orders.

    app           puts it together: reads the cards, keeps the connection to the broker (reports out, orders in), and
                  connects programs that come in with a lease token to their executor
    supervisor    what runs against what was ordered: starts, resizes, ends, watches the leases' executors
    links         networks of executors, linked with those of the same caller on other servers
    config        what it is told when it starts

Killed at any moment it leaves its executors running, and finds them again when it starts (pid and start time). Without
a broker everything goes on as it was last ordered. NOT here: deciding anything about leases.
"""

from egpu.apps.serve.app import Server, run
from egpu.apps.serve.config import ServeConfig

__all__ = ["ServeConfig", "Server", "run"]
