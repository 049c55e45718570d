"""`parameters: {shareable: "true"}` of a class: several pods may use one claim of it at the same time.

The pods share one slice: their usage is added up and limited to the claim's amount. The word is the one of Kubernetes'
dynamic resource allocation. Access modes, as volumes have, would not fit: the technology decides which nodes reach a
GPU, and nothing is read-only.
"""

from collections.abc import Mapping
from typing import Final

from egpu.core.provisioners import PROVISIONERS, Provisioner
from egpu_base.errors import InvalidDemand

SHAREABLE: Final = "shareable"
VALUES: Final = ("true", "false")


def is_shareable(parameters: Mapping[str, str], technology: Provisioner) -> bool:
    """Return whether several pods may use one claim of the class.

    Raises InvalidDemand, naming the parameter, for a technology that does not support it.
    """
    if parameters.get(SHAREABLE) != "true":
        return False
    if not technology.shareable:
        able = ", ".join(entry.name for entry in PROVISIONERS.values() if entry.shareable)
        reason = f"{technology.name} does not support several pods on one slice; use one of {able}"
        raise InvalidDemand(f"parameters[{SHAREABLE}]", f"{reason}, or give each pod a claim of its own")
    return True
