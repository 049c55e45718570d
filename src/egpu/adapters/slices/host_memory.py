"""The machine's own memory for slices that are parked for others."""

import os
from typing import Final

from egpu_base.api.quantities import MIB_BYTES

HOST_PART: Final = 0.5
"""Of the machine's memory, unless the administrator says otherwise. The rest is for programs."""


def parking_memory_mib(chosen: int | None) -> int:
    """Return how much of this machine's memory parked slices may take: as chosen, or a part of it."""
    if chosen is not None:
        return chosen
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB_BYTES * HOST_PART)
