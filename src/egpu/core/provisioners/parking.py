"""`parameters: {parking: "true"}` of a class: the memory of its idle programs may leave the card.

The technology keeps the contents in the host's memory, and brings them back with the program's next call. The scheduler
counts the whole share, as without parking.
"""

from collections.abc import Mapping
from typing import Final

from egpu.api.allocation import ContainerDemand
from egpu.core.provisioners import PROVISIONERS, Provisioner
from egpu_base.errors import InvalidDemand

PARKING: Final = "parking"
VALUES: Final = ("true", "false")


def is_parkable(parameters: Mapping[str, str], technology: Provisioner) -> bool:
    """Return whether slices of the class can be parked.

    Raises InvalidDemand, naming the parameter, for a technology that does not support it.
    """
    if parameters.get(PARKING) != "true":
        return False
    if not technology.parks:
        able = ", ".join(entry.name for entry in PROVISIONERS.values() if entry.parks)
        raise InvalidDemand(f"parameters[{PARKING}]", f"{technology.name} does not support parking; use {able}")
    return True


def parking_problem(demand: ContainerDemand) -> str:
    """Return why a demand of a parkable class cannot be met; empty if it can."""
    if demand.exclusive:
        return f"sets {PARKING}, which does not apply to whole cards; ask for a share of a card"
    if demand.cards > 1:
        return f"sets {PARKING}, which supports slices of one card; ask for one card"
    return ""
