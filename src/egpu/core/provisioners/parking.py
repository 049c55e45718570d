"""`parameters: {parking: "true"}` of a class: the memory of its idle programs may leave the card.

The technology keeps the contents in the host's memory, and brings them back with the program's next call. With
`parkingResident: 25%`, only this part of a slice's memory is its own on the card. It shares the room for the rest with
other such slices, and an arbiter on the node decides which of them have it (`egpu.core.arbiter`). With
`parkingIdle: 60s` a slice counts as idle after this time without a call. With `parkingStay: "true"` authors of pods may
keep the memory of a slice on the card, which quotas do not count. With `parkingPatience: 10m` the agent ends programs
that do not leave the card for so long, while others wait for the room.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from egpu.api.allocation import ContainerDemand
from egpu.core.provisioners import Provisioner
from egpu.core.provisioners.parameters import TRUE_OR_FALSE, is_true
from egpu_base.errors import InvalidDemand

_Value = TypeVar("_Value", int, float)

PARKING: Final = "parking"
RESIDENT: Final = "parkingResident"
IDLE: Final = "parkingIdle"
STAY: Final = "parkingStay"
PATIENCE: Final = "parkingPatience"
NAMES: Final = (PARKING, RESIDENT, IDLE, STAY, PATIENCE)
VALUES: Final = TRUE_OR_FALSE
IDLE_SECONDS: Final = 10.0
"""Longer than most pauses within a computation."""
_MOST_SECONDS: Final = 86_400
_LEAST_PATIENCE_SECONDS: Final = 60
"""A large slice on a slow machine takes half of this to leave its card."""
_PERCENT: Final = re.compile(r"([1-9][0-9]?)%")
_DURATION: Final = re.compile(r"([1-9][0-9]{0,4})(s|m|h)")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class ParkingTerms:
    """How far slices of a class may be parked. `resident_percent` 0: all of their memory has its own room.
    `patience_seconds` 0: no program is ended because it does not leave."""

    parkable: bool = False
    resident_percent: int = 0
    idle_seconds: float = 0.0
    stays_on_request: bool = False
    patience_seconds: float = 0.0


def parking_terms(parameters: Mapping[str, str], technology: Provisioner) -> ParkingTerms:
    """Read how far slices of the class may be parked. Raises InvalidDemand, naming the parameter."""
    parkable = is_true(parameters, PARKING, technology, supports=lambda one: one.parks, what=PARKING)
    for name in (RESIDENT, IDLE, STAY, PATIENCE):
        if name in parameters and not parkable:
            raise InvalidDemand(f"parameters[{name}]", f'needs {PARKING}: "true"')
    if RESIDENT not in parameters:
        for name in (IDLE, STAY, PATIENCE):
            if name in parameters:
                reason = f"needs {RESIDENT}: slices with their own room are not parked"
                raise InvalidDemand(f"parameters[{name}]", reason)
        return ParkingTerms(parkable)
    resident = _read(parameters, RESIDENT, parse_resident, 0)
    idle = _read(parameters, IDLE, parse_idle, IDLE_SECONDS)
    patience = _read(parameters, PATIENCE, _parse_patience, 0.0)
    stays = is_true(parameters, STAY, technology, supports=lambda one: one.parks, what=STAY)
    return ParkingTerms(parkable, resident, idle, stays, patience)


def _read(parameters: Mapping[str, str], name: str, parse: Callable[[str], _Value], default: _Value) -> _Value:
    try:
        return parse(parameters[name]) if name in parameters else default
    except ValueError as error:
        raise InvalidDemand(f"parameters[{name}]", str(error)) from error


def parse_resident(text: str) -> int:
    """Read the part of a slice's memory that has its own room. Raises ValueError."""
    found = _PERCENT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a percentage from 1% to 99%")
    return int(found[1])


def parse_idle(text: str) -> float:
    """Read the time after which a slice is idle. Raises ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None or (seconds := int(found[1]) * _UNITS[found[2]]) > _MOST_SECONDS:
        raise ValueError(f"{text!r} is not a time up to 24h, such as 60s, 5m or 1h")
    return float(seconds)


def _parse_patience(text: str) -> float:
    seconds = parse_idle(text)
    if seconds < _LEAST_PATIENCE_SECONDS:
        raise ValueError(f"{text!r} is less than {_LEAST_PATIENCE_SECONDS}s, which a program may need to leave")
    return seconds


def parking_problem(demand: ContainerDemand) -> str:
    """Return why a demand of a parkable class cannot be met; empty if it can."""
    if demand.exclusive:
        return f"sets {PARKING}, which does not apply to whole cards; ask for a share of a card"
    if demand.cards > 1:
        return f"sets {PARKING}, which supports slices of one card; ask for one card"
    return ""


def resident_mib(demand: ContainerDemand, memory_mib: int) -> int:
    """Return how much of a slice's memory has its own room on the card; 0: all of it."""
    return -(-memory_mib * demand.resident_percent // 100)
