"""`minCore`, `maxCore`, `minMemory` and `maxMemory` of a class: how much of each card a claim of it may ask for.

As Kubernetes' LimitRange bounds what claims of a namespace ask of volumes. What a bound cannot be compared with is
refused, not let in: a share in TFLOPS or without memory is another one on each card model.
"""

from dataclasses import dataclass
from typing import Final

from egpu.api import names
from egpu.api.allocation import ContainerDemand
from egpu.api.objects import ElasticGPUClass
from egpu.api.quantities import parse_count, parse_memory_mib
from egpu.errors import InvalidDemand, InvalidQuantity

MIN_CORE: Final = "minCore"
MAX_CORE: Final = "maxCore"
MIN_MEMORY: Final = "minMemory"
MAX_MEMORY: Final = "maxMemory"


@dataclass(frozen=True)
class Bounds:
    """Of each card, both ends included: percent and MiB; None where the class says nothing."""

    least_core: int | None = None
    most_core: int | None = None
    least_mib: int | None = None
    most_mib: int | None = None


def class_bounds(klass: ElasticGPUClass) -> Bounds:
    """What claims of the class may ask for. Raises InvalidDemand, naming the parameter."""
    cores = {name: _given(klass, name) for name in (MIN_CORE, MAX_CORE)}
    for name, core in cores.items():
        if core is not None and core > 100:
            raise InvalidDemand(f"parameters[{name}]", f"{core} is not a share of one card; give 1 to 100 percent")
    memories = {name: _given(klass, name) for name in (MIN_MEMORY, MAX_MEMORY)}
    for named in (cores, memories):
        (least_name, least), (most_name, most) = named.items()
        if least is not None and most is not None and least > most:
            raise InvalidDemand(f"parameters[{least_name}]", f"{least} is more than the {most} of {most_name}")
    return Bounds(cores[MIN_CORE], cores[MAX_CORE], memories[MIN_MEMORY], memories[MAX_MEMORY])


def _given(klass: ElasticGPUClass, name: str) -> int | None:
    text = (klass.parameters or {}).get(name)
    if text is None:
        return None
    field = f"parameters[{name}]"
    try:
        return (
            parse_memory_mib(text, field=field) if name in (MIN_MEMORY, MAX_MEMORY) else parse_count(text, field=field)
        )
    except InvalidQuantity as error:
        raise InvalidDemand(field, error.reason) from error


def check_bounds(demand: ContainerDemand, bounds: Bounds, *, class_name: str, field: str) -> None:
    """Whether a claim of the class may ask for `demand`. Raises InvalidDemand for `field`, with the numbers."""
    core = 100 if demand.exclusive else demand.core
    memory_mib = 0 if demand.exclusive else demand.memory_mib  # of whole cards: as much as each has
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
            raise InvalidDemand(field, f"names no {what}, and {said}; name it")
        if not (least or 0) <= asked <= (asked if most is None else most):
            raise InvalidDemand(field, f"{asked} {unit} of a card; {said}")
