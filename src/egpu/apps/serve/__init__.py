"""The node daemon of the pool: runs executors on this machine's cards, as the broker orders.

    app           assembles the daemon: reads the cards, keeps the connection to the broker, connects programs with a
                  lease token to their executor
    supervisor    compares running executors with the orders: starts, resizes, ends and watches them
    owners        leases as they are stored beside their executors
    arrivals      leases that move to this server
    departures    leases that move away from it
    rooms         which leases that share room have their memory on the card
    links         networks of executors, linked with those of the same caller on other servers
    config        its settings

If it is killed, its executors keep running, and it finds them again when it starts (pid and start time). Without a
broker everything continues by the last orders. NOT here: decisions about leases."""

from egpu.apps.serve.app import Server, run
from egpu.apps.serve.config import ServeConfig

__all__ = ["ServeConfig", "Server", "run"]
