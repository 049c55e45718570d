"""Expressions in CEL that select devices. Pure."""

from collections.abc import Sequence
from typing import Any

from egpu_base.cel import grammar as cel
from egpu_base.cel import types as cel_types
from egpu_base.errors import InvalidInput
from egpu_sim.cluster.trees import Json, as_object, at


def variables(device: Json, driver: str) -> dict[str, Any]:
    """Return the variable `device` of expressions."""
    attributes, capacities = cel_types.Domains(), cel_types.Domains()
    for name, value in attribute_values(device, driver).items():
        domain, _, identifier = name.rpartition("/")
        attributes.setdefault(domain, {})[identifier] = value
    for name, capacity in as_object(device.get("capacity")).items():
        domain, _, identifier = qualified(name, driver).rpartition("/")
        capacities.setdefault(domain, {})[identifier] = cel_types.quantity(str(as_object(capacity).get("value")))
    shared = bool(device.get("allowMultipleAllocations"))
    found = {"driver": driver, "attributes": attributes, "capacity": capacities, "allowMultipleAllocations": shared}
    return {"device": found}


def attribute_values(device: Json, driver: str) -> dict[str, Any]:
    """Return the attributes with full names and as values of CEL."""
    found: dict[str, Any] = {}
    for name, attribute in as_object(device.get("attributes")).items():
        kind, value = next(iter(as_object(attribute).items()))
        found[qualified(name, driver)] = cel_types.semver(value) if kind == "version" else value
    return found


def qualified(name: str, driver: str) -> str:
    """Return a name with its domain, the driver's where it has none."""
    return name if "/" in name else f"{driver}/{name}"


def selects(selectors: Sequence[Json], scope: dict[str, Any], *, of: str) -> bool:
    """Return whether all selectors are true. `of`: their owner, for errors. Raises InvalidInput where one fails."""
    for index, selector in enumerate(selectors):
        try:
            if not cel.compiled(str(at(selector, "cel", "expression")), cel.DEVICE_VARIABLES)(scope):
                return False
        except cel.NotUnderstood as error:
            raise InvalidInput(of, f"selector #{index}: CEL compile error: {error}") from error
        except cel.EvaluationError as error:
            raise InvalidInput(of, f"selector #{index}: CEL runtime error: {error}") from error
    return True
