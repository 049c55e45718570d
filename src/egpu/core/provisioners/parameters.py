"""Parameters of a class that are "true" or "false", and need the support of its technology."""

from collections.abc import Callable, Mapping
from typing import Final

from egpu.core.provisioners import PROVISIONERS, Provisioner
from egpu_base.errors import InvalidDemand

TRUE_OR_FALSE: Final = ("true", "false")


def is_true(
    parameters: Mapping[str, str],
    name: str,
    technology: Provisioner,
    *,
    supports: Callable[[Provisioner], bool],
    what: str,
    instead: str = "",
) -> bool:
    """Return whether a class sets the parameter to "true". `what` names what it turns on.

    Raises InvalidDemand, naming the parameter and the technologies that support it, for one that does not. `instead` is
    another way out.
    """
    if parameters.get(name) != "true":
        return False
    if not supports(technology):
        able = [entry.name for entry in PROVISIONERS.values() if supports(entry)]
        use = f"use {able[0]}" if len(able) == 1 else f"use one of {', '.join(able)}"
        reason = f"{technology.name} does not support {what}; {use}{instead}"
        raise InvalidDemand(f"parameters[{name}]", reason)
    return True
