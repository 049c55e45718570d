"""`parameters: {memoryOversubscription: "1.5"}` of a class: programs may allocate this multiple of their share of
memory.

Memory beyond the share is managed memory, which the driver moves between card and host. The scheduler counts only the
share: oversubscription takes no memory from others, it costs its user speed.
"""

import re
from collections.abc import Mapping
from typing import Final

from egpu.core.provisioners import PROVISIONERS, Provisioner
from egpu_base.errors import InvalidDemand

MEMORY_OVERSUBSCRIPTION: Final = "memoryOversubscription"
MOST: Final = 10
"""The largest factor; with more, almost nothing of a program's memory would be on the card."""
_FACTOR: Final = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,2}))?", re.ASCII)


def memory_limit_percent(parameters: Mapping[str, str], technology: Provisioner | None) -> int:
    """Return what programs may allocate, in percent of their share; 0 where the class has no oversubscription.

    Raises InvalidDemand, naming the parameter, for an invalid factor and for a technology that does not support it.
    `technology` None: not known, check the factor alone.
    """
    text = parameters.get(MEMORY_OVERSUBSCRIPTION)
    if text is None:
        return 0
    field = f"parameters[{MEMORY_OVERSUBSCRIPTION}]"
    found = _FACTOR.fullmatch(text)
    percent = int(found[1]) * 100 + int((found[2] or "").ljust(2, "0")) if found else 0
    if not 100 <= percent <= MOST * 100:
        raise InvalidDemand(field, f'{text!r} is not a factor from 1 to {MOST} with up to two decimals, such as "1.5"')
    if percent == 100:
        return 0
    if technology is not None and not technology.oversubscribes:
        able = " or ".join(entry.name for entry in PROVISIONERS.values() if entry.oversubscribes)
        raise InvalidDemand(field, f"{technology.name} does not support oversubscription; use {able}")
    return percent
