"""The cluster that the tests of `tests/cluster` run on."""

from dataclasses import dataclass

from egpu_base.kubernetes import Client


@dataclass(frozen=True)
class Target:
    """A cluster, a namespace in it, and how Python is called in its containers. `real`: not the simulated one."""

    client: Client
    namespace: str
    image: str
    python: str
    real: bool
