"""What simulated cards keep of their memory: nothing, so that tests can count bytes.

What the models keep for the driver and for contexts is in `simulator/tests/gpu/test_sim_kept_memory.py`.
"""

import os


def keep_nothing() -> None:
    """For this process and all that it starts."""
    os.environ |= {"EGPU_SIM_DRIVER_MIB": "0", "EGPU_SIM_CONTEXT_MIB": "0"}
