"""`parameters: {memoryOversubscription: "1.5"}` of a class: programs may allocate so many times their share of memory.

What does not fit into the share is managed memory, which the driver moves between the card and the host. The scheduler
counts the share alone: oversubscription takes no memory from anybody, it costs its user speed.
"""

import re
from typing import Final

from egpu.api.objects import ElasticGPUClass
from egpu.core.provisioners import PROVISIONERS, provisioner
from egpu.errors import InvalidDemand

MEMORY_OVERSUBSCRIPTION: Final = "memoryOversubscription"
MOST: Final = 10
"""With more, next to nothing of what a program holds would be on the card."""
_FACTOR: Final = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,2}))?", re.ASCII)


def memory_limit_percent(klass: ElasticGPUClass) -> int:
    """What may be allocated, in percent of the share; 0 where the class oversubscribes nothing.

    Raises InvalidDemand, naming the parameter, for what is no factor and for a technology that cannot do it, and
    UnknownProvisioner.
    """
    text = (klass.parameters or {}).get(MEMORY_OVERSUBSCRIPTION)
    if text is None:
        return 0
    field = f"parameters[{MEMORY_OVERSUBSCRIPTION}]"
    found = _FACTOR.fullmatch(text)
    percent = int(found[1]) * 100 + int((found[2] or "").ljust(2, "0")) if found else 0
    if not 100 <= percent <= MOST * 100:
        raise InvalidDemand(field, f'{text!r} is not a factor from 1 to {MOST}, of two decimals at most, such as "1.5"')
    if percent == 100:
        return 0
    technology = provisioner(klass.provisioner)
    if not technology.oversubscribes:
        able = " or ".join(entry.name for entry in PROVISIONERS.values() if entry.oversubscribes)
        raise InvalidDemand(field, f"{technology.name} cannot give out more memory than there is; {able} can")
    return percent
