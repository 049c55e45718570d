"""Let JAX find the card, and give it PTX if it is a simulated one (`egpu_base.compilers`).

JAX assumes that a machine without NVIDIA's device files has no card; a slice of a simulated card and the pool have
none. For machine code it runs the `ptxas` of its CUDA package, and without such a package the first one of PATH. A
simulated card's own `ptxas` is there.

This runs inside a user's program, whose environment has JAX and need not have Elastic GPU, so it imports nothing of
ours. JAX imports all modules in its namespace `jax_plugins` before it looks for a card, and calls `initialize`.
"""

import importlib
import os
from typing import Any


def initialize() -> None:
    """Set JAX up; it calls this once. Raises AttributeError, which JAX logs, for an unknown version of JAX."""
    hardware: Any = importlib.import_module("jax._src.hardware_utils")
    if not hardware.has_visible_nvidia_gpu():
        hardware.has_visible_nvidia_gpu = lambda: True
    if os.environ.get("EGPU_GIVE_PTX"):
        toolkit: Any = importlib.import_module("jax._src.lib")
        if toolkit.cuda_path is not None:
            toolkit.cuda_path = None
