"""Constraints of a claim: an attribute that its devices must share, or must not. Pure."""

from collections.abc import Iterable
from typing import Any

from egpu_sim.cluster.dynamic.pools import Device
from egpu_sim.cluster.dynamic.requests import Request
from egpu_sim.cluster.dynamic.selectors import attribute_values
from egpu_sim.cluster.trees import Json, as_list


def hold(constraints: Iterable[Json], chosen: Iterable[tuple[Request, Device]], new: tuple[Request, Device]) -> bool:
    """Return whether a new device satisfies the constraints beside those that the claim has."""
    before = list(chosen)
    return all(_holds(one, before, new) for one in constraints)


def _holds(constraint: Json, before: list[tuple[Request, Device]], new: tuple[Request, Device]) -> bool:
    names = set(map(str, as_list(constraint.get("requests"))))

    def concerns(request: Request) -> bool:
        return not names or bool(names & {request.name, request.base})

    if not concerns(new[0]):
        return True
    same = constraint.get("matchAttribute") is not None
    attribute = str(constraint.get("matchAttribute") if same else constraint.get("distinctAttribute"))
    value = _value(new[1], attribute)
    if value is None:
        return False
    others = [_value(device, attribute) for request, device in before if concerns(request)]
    return all((other == value) is same for other in others)


def _value(device: Device, attribute: str) -> tuple[str, Any] | None:
    found: Any = attribute_values(device.body, device.id.driver).get(attribute)
    return None if found is None else (type(found).__name__, found)
