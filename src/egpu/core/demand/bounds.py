"""`minCore`, `maxCore`, `minMemory` and `maxMemory` of a class: the amounts of each card that its claims may ask for.

As Kubernetes' LimitRange limits the volumes of a namespace. Amounts that cannot be compared are refused: a share in
TFLOPS or without memory has a different size on each card model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from egpu.api import names
from egpu.api.allocation import ContainerDemand
from egpu_base.api.quantities import is_zero, parse_count, parse_memory_mib
from egpu_base.errors import InvalidDemand, InvalidQuantity

MIN_CORE: Final = "minCore"
MAX_CORE: Final = "maxCore"
MIN_MEMORY: Final = "minMemory"
MAX_MEMORY: Final = "maxMemory"
BOUNDS: Final = (MIN_CORE, MAX_CORE, MIN_MEMORY, MAX_MEMORY)


@dataclass(frozen=True)
class Bounds:
    """Bounds for each card, both ends included, in percent and MiB; None for no bound. A minimum of 0 is no bound."""

    least_core: int | None = None
    most_core: int | None = None
    least_mib: int | None = None
    most_mib: int | None = None


def class_bounds(parameters: Mapping[str, str]) -> Bounds:
    """Read the bounds of a class. Raises InvalidDemand, naming the parameter."""
    cores = {name: _bound(parameters, name) for name in (MIN_CORE, MAX_CORE)}
    for name, core in cores.items():
        if core is not None and core > 100:
            raise InvalidDemand(f"parameters[{name}]", f"{core} is not a share of one card; give 1 to 100 percent")
    memories = {name: _bound(parameters, name) for name in (MIN_MEMORY, MAX_MEMORY)}
    for named in (cores, memories):
        (least_name, least), (most_name, most) = named.items()
        if least is not None and most is not None and least > most:
            raise InvalidDemand(f"parameters[{least_name}]", f"{least} is more than the {most} of {most_name}")
    return Bounds(cores[MIN_CORE], cores[MAX_CORE], memories[MIN_MEMORY], memories[MAX_MEMORY])


def _bound(parameters: Mapping[str, str], name: str) -> int | None:
    text = parameters.get(name)
    if text is None or (name in (MIN_CORE, MIN_MEMORY) and is_zero(text)):
        return None
    field = f"parameters[{name}]"
    try:
        return (
            parse_memory_mib(text, field=field) if name in (MIN_MEMORY, MAX_MEMORY) else parse_count(text, field=field)
        )
    except InvalidQuantity as error:
        raise InvalidDemand(field, error.reason) from error


def check_bounds(demand: ContainerDemand, bounds: Bounds, *, class_name: str, field: str) -> None:
    """Check a claim's demand against the bounds of its class. Raises InvalidDemand for `field`, with the numbers."""
    core = 100 if demand.exclusive else demand.core
    memory_mib = 0 if demand.exclusive else demand.memory_mib  # whole cards: all of each
    for what, unit, asked, least, most in (
        (names.GPU_CORE, "%", core, bounds.least_core, bounds.most_core),
        (names.GPU_MEMORY, "MiB", memory_mib, bounds.least_mib, bounds.most_mib),
    ):
        if (least is None and most is None) or (demand.exclusive and most is None):
            continue
        allowed = " and ".join(
            f"{word} {end} {unit}" for word, end in (("at least", least), ("at most", most)) if end is not None
        )
        said = f"class {class_name} allows {allowed} of a card"
        if not asked:
            raise InvalidDemand(field, f"must ask for {what}: {said}")
        if not (least or 0) <= asked <= (asked if most is None else most):
            raise InvalidDemand(field, f"asks for {asked} {unit} of a card; {said}")
