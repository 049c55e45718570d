"""Limits of compute, in Kubernetes' words: what a slice requests is guaranteed, and up to its limit it may use compute
that others leave idle.

Pods cannot write it in their resources, because Kubernetes wants limits and requests of extended resources to be equal.
So pods have an annotation, claims write it in `spec.resources.limits`, and a class may give it to all of its claims
(`computeMode`).
"""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from egpu.api.allocation import ContainerDemand, core_limit_of
from egpu.api.vocabularies import VOCABULARIES
from egpu.core.provisioners import PROVISIONERS, provisioner
from egpu.core.provisioners.base import Provisioner
from egpu_base.api.quantities import Quantity, is_zero, parse_count
from egpu_base.errors import InvalidDemand, InvalidQuantity

COMPUTE_MODE: Final = "computeMode"
"""Class parameter: "cap" (never above the share, the default) or "share" (may use idle compute)."""
CAP, SHARE = "cap", "share"
MAX_CORE_LIMITS: Final = "maxCoreLimits"
"""Class parameter: the most that the limits of all slices on a card may add up to, in percent of a card."""
WHOLE: Final = 100

_CORE_NAMES: Final = frozenset(vocabulary.core for vocabulary in VOCABULARIES if vocabulary.core)


def of_mode(mode: str) -> int:
    """Return the limit that a class with this `computeMode` gives to its claims, in percent; 0: the request."""
    return WHOLE if mode == SHARE else 0


def split(
    requests: Mapping[str, Quantity], limits: Mapping[str, Quantity]
) -> tuple[dict[str, Quantity], dict[str, Quantity]]:
    """Return (requests, limits of compute beyond them) of a claim. A name with a limit alone requests its limit. Raises
    InvalidDemand for a limit of anything else that differs from its request."""
    beyond = {name: value for name, value in limits.items() if str(requests.get(name, value)) != str(value)}
    for name, value in beyond.items():
        if name not in _CORE_NAMES:
            raise InvalidDemand(
                f"spec.resources.limits[{name}]",
                f"{value} differs from the {requests[name]} of requests; only the percent of compute may have a higher "
                "limit, so give requests only",
            )
    return {**limits, **requests}, beyond


def of_claim(demand: ContainerDemand, beyond: Mapping[str, Quantity], parameters: Mapping[str, str]) -> ContainerDemand:
    """Return the demand with the claim's own limit. Raises InvalidDemand if its class caps compute."""
    for name, value in beyond.items():
        field = f"spec.resources.limits[{name}]"
        if parameters.get(COMPUTE_MODE) == CAP:
            reason = f"class {demand.class_name} sets {COMPUTE_MODE}: {CAP}, so no limit is above its request"
            raise InvalidDemand(field, f"{reason}; give requests only, or use another class")
        return with_limit(demand, value, field)
    return demand


def with_limit(demand: ContainerDemand, value: Quantity, field: str) -> ContainerDemand:
    """Return the demand with this limit in percent; 0: its request. Raises InvalidDemand for `field`."""
    try:
        limit = 0 if is_zero(value) else parse_count(value, field=field)
    except InvalidQuantity as error:
        raise InvalidDemand(field, error.reason) from error
    if not limit:
        return replace(demand, core_limit=0)
    if demand.exclusive or not demand.core:
        what = "whole cards" if demand.exclusive else "no percent of compute"
        raise InvalidDemand(field, f"limits a share of a card, and this asks for {what}; remove it")
    if not demand.core <= limit <= WHOLE:
        raise InvalidDemand(
            field, f"{limit} is out of range; write a percentage from {demand.core} (the share) to {WHOLE}"
        )
    check_bursts(provisioner(demand.provisioner), field, "idle compute")
    return replace(demand, core_limit=limit)


def check_bursts(technology: Provisioner, field: str, wanted: str) -> None:
    """Check that a technology lets slices use idle compute, and has turns. Raises InvalidDemand for `field`."""
    if not technology.bursts:
        able = ", ".join(one.name for one in PROVISIONERS.values() if one.bursts)
        raise InvalidDemand(field, f"{technology.name} gives out no {wanted}; remove it, or use one of {able}")


def max_core_limits(parameters: Mapping[str, str], technology: Provisioner) -> int:
    """Return the most that limits may add up to on a card of a class, in percent; 0: any. Raises InvalidDemand."""
    text = parameters.get(MAX_CORE_LIMITS)
    if text is None:
        return 0
    field = f"parameters[{MAX_CORE_LIMITS}]"
    check_bursts(technology, field, "idle compute")
    try:
        return parse_count(text, field=field)
    except InvalidQuantity as error:
        raise InvalidDemand(field, error.reason) from error


def check_max_core_limits(demand: ContainerDemand, field: str) -> None:
    """Check that a claim alone is within its class's bound of limits. Raises InvalidDemand for `field`."""
    limit = core_limit_of(demand.core, demand.core_limit)
    if demand.max_core_limits and not demand.exclusive and limit > demand.max_core_limits:
        reason = f"may use up to {limit} % of a card, and class {demand.class_name} allows {demand.max_core_limits} %"
        raise InvalidDemand(field, f"{reason} for all slices of a card together ({MAX_CORE_LIMITS}); lower its limit")
