"""Ports of this machine that nobody listens on."""

from egpu_sim.cluster.ports import Ports

_TAKEN = Ports()
"""For as long as the tests of this process run."""


def free_port() -> int:
    """One that stays free for whoever is told of it."""
    return _TAKEN.take()
