"""Elastic GPU: share GPUs on Kubernetes or on a laptop, behind one claim.

    api         data only: names, quantities, objects, wire shapes
    core        decisions only: values in, values out
    adapters    the only I/O
    apps        one process each
    laptop      the apps over the simulated world, which is a package of its own
    cli         `egpu` and `kubectl egpu`

Imports go down only, that is up in this list: `.importlinter` holds the order. `egpu_base` is below all of it.
"""

__version__ = "0.1.0"
