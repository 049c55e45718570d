"""Settings of new machines that the environment can choose, for programs that make machines by other commands."""

import os
from typing import Final, Literal

import msgspec

from egpu_base.errors import InvalidInput

_MOST_KEPT_MIB: Final = 4096
_MOST_DIGITS: Final = 10

Compiled = Literal["refuse", "skip", "zero"]
"""The answer to kernels without PTX."""


class Kept(msgspec.Struct, frozen=True):
    """Memory in MiB that each context and the driver keep, where it differs from the models' figures."""

    context_mib: int | None = None
    driver_mib: int | None = None


def kept_memory(context_mib: int | None, driver_mib: int | None) -> Kept:
    """Return the figures as given or from the environment. Raises InvalidInput."""
    return Kept(_kept("context_mib", context_mib), _kept("driver_mib", driver_mib))


def _kept(name: str, given: int | None) -> int | None:
    """Return a figure of Kept, as given or from the environment. Raises InvalidInput naming it."""
    if given is None:
        name = f"EGPU_SIM_{name.upper()}"
        text = os.environ.get(name, "")
        if not text:
            return None
        given = int(text) if text.isdecimal() and len(text) < _MOST_DIGITS else -1
    if not 0 <= given <= _MOST_KEPT_MIB:
        raise InvalidInput(name, f"must be a number of MiB from 0 to {_MOST_KEPT_MIB}")
    return given


def compiled_kernels() -> Compiled:
    """Return the answer to compiled kernels that the environment chooses. Raises InvalidInput."""
    match os.environ.get("EGPU_SIM_COMPILED", ""):
        case "skip" | "zero" as chosen:
            return chosen
        case "" | "refuse":
            return "refuse"
        case other:
            raise InvalidInput("EGPU_SIM_COMPILED", f"{other!r} is none of 'refuse', 'skip' and 'zero'")
