"""`parameters: {memoryIsolation: driver}` of a class: the driver holds programs to their memory, by control group.

Drivers of CUDA 13.4 can (https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html); cards of others are not
taken. What else the class's technology holds, it holds as ever.
"""

from typing import Final

from egpu.api.allocation import CardRequirement
from egpu.api.objects import ElasticGPUClass
from egpu.core.attributes import MEMORY_ISOLATION
from egpu.core.provisioners import PROVISIONERS, provisioner
from egpu.core.provisioners.oversubscription import memory_limit_percent
from egpu.core.provisioners.sharing import is_shareable
from egpu.errors import InvalidDemand

DRIVER: Final = "driver"
VALUES: Final = (DRIVER,)
REQUIRED: Final = CardRequirement(key=MEMORY_ISOLATION, operator="In", values=VALUES)
"""What a card must be for it."""


def memory_isolation(klass: ElasticGPUClass) -> str:
    """DRIVER, or "" where the class leaves it to its technology.

    Raises InvalidDemand, naming the parameter, for a technology whose programs are in no control group of their pod's,
    and beside what the driver cannot know of; and UnknownProvisioner.
    """
    if (klass.parameters or {}).get(MEMORY_ISOLATION) != DRIVER:
        return ""
    field = f"parameters[{MEMORY_ISOLATION}]"
    technology = provisioner(klass.provisioner)
    if not technology.driver_limits:
        able = ", ".join(entry.name for entry in PROVISIONERS.values() if entry.driver_limits)
        raise InvalidDemand(field, f"{technology.name} has no limits that the driver could hold; use one of {able}")
    if is_shareable(klass):
        raise InvalidDemand(field, "several pods of one claim are in several control groups; leave out shareable")
    if memory_limit_percent(klass):
        raise InvalidDemand(field, "the driver lets nobody allocate more than the share; leave out oversubscription")
    return DRIVER
