"""Amounts of shared devices: asked for, consumed under a device's policy, and left. Pure."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TypeAlias

from egpu_base.api.quantities import parse_quantity
from egpu_sim.cluster.trees import Json, as_list, as_object, at

Amounts: TypeAlias = Mapping[str, Fraction]


def consumed(device: Json, asked: Json) -> Amounts | None:
    """Return the amounts of the device that a request takes, by name as the device has it; None where it may not.

    A request without an amount takes the policy's default, or the whole without a policy. Other amounts are rounded up
    to the next valid one.
    """
    capacities = as_object(device.get("capacity"))
    if asked.keys() - capacities.keys():
        return None
    found: dict[str, Fraction] = {}
    for name, capacity in capacities.items():
        policy, wanted = as_object(as_object(capacity).get("requestPolicy")), asked.get(name)
        if wanted is None:
            found[name] = parse_quantity(policy.get("default", as_object(capacity).get("value")))
            continue
        amount = _rounded(parse_quantity(wanted), policy)
        if not _is_valid(amount, policy):
            return None
        found[name] = amount
    return found


def _rounded(amount: Fraction, policy: Json) -> Fraction:
    bounds = as_object(policy.get("validRange"))
    if "min" in bounds:
        least = parse_quantity(bounds["min"])
        if amount < least or "step" not in bounds:
            return max(amount, least)
        step = parse_quantity(bounds["step"])
        return least + step * -((least - amount) // step)
    values = map(parse_quantity, as_list(policy.get("validValues")))
    return next((value for value in values if amount <= value), amount)


def _is_valid(amount: Fraction, policy: Json) -> bool:
    if (most := at(policy, "validRange", "max")) is not None:
        return amount <= parse_quantity(most)
    values = as_list(policy.get("validValues"))
    return not values or amount in map(parse_quantity, values)


def fits(device: Json, taken: Amounts, wanted: Amounts) -> bool:
    """Return whether amounts fit beside those that are taken."""
    capacities = as_object(device.get("capacity"))
    return all(
        taken.get(name, Fraction(0)) + amount <= parse_quantity(as_object(capacities.get(name)).get("value"))
        for name, amount in wanted.items()
    )


def total(parts: Iterable[Amounts]) -> dict[str, Fraction]:
    found: dict[str, Fraction] = {}
    for part in parts:
        for name, amount in part.items():
            found[name] = found.get(name, Fraction(0)) + amount
    return found


def read(amounts: object) -> Amounts:
    """Return the amounts of an API object."""
    return {name: parse_quantity(value) for name, value in as_object(amounts).items()}
