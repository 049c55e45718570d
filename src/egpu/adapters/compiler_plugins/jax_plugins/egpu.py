"""JAX finds the card that there is, and gives it PTX where it is a simulated one (`egpu.adapters.compilers`).

JAX takes a machine without NVIDIA's device files for one without a card, and has none of a slice of a simulated card,
nor of the pool. For machine code it runs the `ptxas` of the package that brings CUDA, and only where there is no such
package the first of PATH; what a simulated card has in its place is there.

This runs inside somebody's program, whose environment has JAX and need not have Elastic GPU: it imports nothing of
ours. JAX imports all modules in its namespace `jax_plugins` before it looks for a card, and calls `initialize`.
"""

import importlib
import os
from typing import Any


def initialize() -> None:
    """What JAX calls once. Raises AttributeError, which JAX logs, where JAX is another than this knows."""
    hardware: Any = importlib.import_module("jax._src.hardware_utils")
    if not hardware.has_visible_nvidia_gpu():
        hardware.has_visible_nvidia_gpu = lambda: True
    if os.environ.get("EGPU_GIVE_PTX"):
        toolkit: Any = importlib.import_module("jax._src.lib")
        if toolkit.cuda_path is not None:
            toolkit.cuda_path = None
