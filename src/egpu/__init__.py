"""Elastic GPU: share GPUs on Kubernetes or on a laptop, behind one claim.

    errors      every exception that one package raises for another to handle
    api         data only: names, quantities, objects, wire shapes
    core        decisions only: values in, values out
    runtime     asyncio without Kubernetes
    adapters    the only I/O
    apps        one process each
    embedded    the rest of a cluster, small enough for a laptop
    cli         `egpu` and `kubectl egpu`

Imports go down only, that is up in this list: `.importlinter` holds the order.
"""

__version__ = "0.1.0"
