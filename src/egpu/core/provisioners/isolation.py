"""`parameters: {memoryIsolation: driver}` of a class: the driver limits programs to their memory, by control group.

Drivers of CUDA 13.4 support it (https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html); other cards are not
used. The class's technology enforces everything else as usual.
"""

from collections.abc import Mapping
from typing import Final

from egpu.api.allocation import CardRequirement
from egpu.core.attributes import MEMORY_ISOLATION
from egpu.core.provisioners import PROVISIONERS, Provisioner
from egpu.core.provisioners.oversubscription import memory_limit_percent
from egpu.core.provisioners.shareable import is_shareable
from egpu_base.errors import InvalidDemand

DRIVER: Final = "driver"
VALUES: Final = (DRIVER,)
REQUIRED: Final = CardRequirement(key=MEMORY_ISOLATION, operator="In", values=VALUES)
"""The requirement that a card must meet."""


def memory_isolation(parameters: Mapping[str, str], technology: Provisioner) -> str:
    """Return DRIVER, or "" where the class leaves isolation to its technology.

    Raises InvalidDemand, naming the parameter, for a technology that runs programs outside their pod's control group,
    and for other parameters that the driver cannot support.
    """
    if parameters.get(MEMORY_ISOLATION) != DRIVER:
        return ""
    field = f"parameters[{MEMORY_ISOLATION}]"
    if not technology.driver_limits:
        able = ", ".join(entry.name for entry in PROVISIONERS.values() if entry.driver_limits)
        raise InvalidDemand(field, f"{technology.name} does not support memory limits by the driver; use one of {able}")
    if is_shareable(parameters, technology):
        raise InvalidDemand(field, "does not support claims of several pods, each in a control group; remove shareable")
    if memory_limit_percent(parameters, technology):
        raise InvalidDemand(field, "does not support oversubscription; remove memoryOversubscription")
    return DRIVER
