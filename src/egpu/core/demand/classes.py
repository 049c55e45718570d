"""A class as its claims meet it: its technology, looked up once, and the parameters that all technologies share.

Parameters of one technology alone are in its own module (`egpu.core.provisioners`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from egpu.api.objects import ElasticGPUClass
from egpu.core.attributes import MEMORY_ISOLATION, PREFERENCES, Select, parse_selector
from egpu.core.demand.bounds import BOUNDS, Bounds, class_bounds
from egpu.core.demand.kinds import BATCH, LATENCY, LATENCY_PRIORITY, WORK, is_latency, latency_priority
from egpu.core.demand.limits import CAP, COMPUTE_MODE, MAX_CORE_LIMITS, SHARE, max_core_limits
from egpu.core.links import LEAST
from egpu.core.provisioners import PROVISIONERS, Provisioner, isolation, parking, provisioner
from egpu.core.provisioners.oversubscription import MEMORY_OVERSUBSCRIPTION, memory_limit_percent
from egpu.core.provisioners.parking import PARKING, ParkingTerms, parking_terms
from egpu.core.provisioners.shareable import SHAREABLE, VALUES, is_shareable

Parameters = Mapping[str, str]
"""The parameters of a class, by name."""

PRECISION: Final = "precision"
"""Class parameter: the precision of the TFLOPS that claims ask for; "fp32" by default."""
PRECISIONS: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
"""The precisions of TFLOPS. Others that an agent publishes are not read: each would have a figure for every card."""
LINKS: Final = "links"
"""Class parameter: the slowest link allowed between any two cards of a claim. Without it, fast links are preferred."""
CARD_SELECTOR: Final = "cardSelector"
"""Class parameter: which cards to use, such as "model in (A100, H100), memory > 40Gi"."""
POLICY: Final = "policy"
"""Class parameter: which of the nodes and cards that fit its claims get (`egpu.core.policies`)."""
CARD_PREFERENCE: Final = "cardPreference"
"""Class parameter: prefer the "strongest" or the "weakest" card that fits. A claim may override it."""


@dataclass(frozen=True)
class ClassTerms:
    """The terms of a class: what its claims get, and what they may ask for."""

    name: str
    technology: Provisioner
    parameters: Parameters
    memory_limit_percent: int
    bounds: Bounds
    shareable: bool
    memory_isolation: str
    parking: ParkingTerms
    latency: bool
    max_core_limits: int


def class_terms(klass: ElasticGPUClass) -> ClassTerms:
    """Read a class. Raises InvalidDemand, naming the parameter, and UnknownProvisioner."""
    technology, parameters = provisioner(klass.provisioner), klass.parameters or {}
    latency_priority(parameters, technology)
    return ClassTerms(
        name=klass.name,
        technology=technology,
        parameters=parameters,
        memory_limit_percent=memory_limit_percent(parameters, technology),
        bounds=class_bounds(parameters),
        shareable=is_shareable(parameters, technology),
        memory_isolation=isolation.memory_isolation(parameters, technology),
        parking=parking_terms(parameters, technology),
        latency=is_latency(parameters, technology),
        max_core_limits=max_core_limits(parameters, technology),
    )


def checks_of(technology: Provisioner | None) -> list[Callable[[Parameters], object]]:
    """Return functions that each read some parameters of a class and raise InvalidDemand for a wrong one. None: of an
    unknown technology."""
    if technology is None:
        return [partial(memory_limit_percent, technology=None), class_bounds, class_selector]
    of_some = (
        memory_limit_percent, is_shareable, isolation.memory_isolation, parking_terms, is_latency, latency_priority,
        max_core_limits,
    )  # fmt: skip
    own = (partial(check, technology=technology) for check in of_some)
    return [*own, class_bounds, class_selector, technology.profiles]


def class_selector(parameters: Parameters) -> Select:
    """Read which cards a class selects. Raises InvalidDemand."""
    text = parameters.get(CARD_SELECTOR)
    return () if text is None else parse_selector(text, f"parameters[{CARD_SELECTOR}]")


def parameter_values() -> dict[str, tuple[str, ...]]:
    """Return the allowed values of each class parameter that has a fixed set of values."""
    own = {
        PRECISION: PRECISIONS,
        COMPUTE_MODE: (CAP, SHARE),
        WORK: (BATCH, LATENCY),
        LINKS: tuple(LEAST),
        CARD_PREFERENCE: PREFERENCES,
        SHAREABLE: VALUES,
        MEMORY_ISOLATION: isolation.VALUES,
        PARKING: parking.VALUES,
        parking.STAY: parking.VALUES,
    }
    for technology in PROVISIONERS.values():
        own |= technology.parameters
    return own


def shared_parameters() -> frozenset[str]:
    """Return the names of the class parameters that all technologies have, also those that only some support."""
    of_technologies = {name for technology in PROVISIONERS.values() for name in technology.parameters}
    texts = {CARD_SELECTOR, LATENCY_PRIORITY, MAX_CORE_LIMITS, MEMORY_OVERSUBSCRIPTION, POLICY, *BOUNDS, *parking.NAMES}
    return frozenset(texts | parameter_values().keys() - of_technologies)


def own_parameters(technology: Provisioner) -> frozenset[str]:
    """Return the names of the class parameters that only this technology and some others have."""
    return frozenset((*technology.parameters, *technology.texts))
