"""Resource arithmetic of a node: what a pod asks for, in whole units (CPU in thousandths of a core)."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal, InvalidOperation

from egpu.api.quantities import Quantity
from egpu.embedded.kubelet.objects import Container, Pod
from egpu.errors import InvalidQuantity

CPU = "cpu"
PODS = "pods"
_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
}  # fmt: skip


def units(resource: str, quantity: Quantity) -> int:
    """`quantity` in whole units, rounded up; CPU in thousandths. Raises InvalidQuantity."""
    text = str(quantity).strip()
    number = text.rstrip("numkKMGTPi")
    try:
        value = Decimal(number) * _SUFFIXES[text[len(number) :]]
    except (InvalidOperation, KeyError) as error:
        raise InvalidQuantity(resource, f"{text!r} is not a quantity") from error
    return int((value * (1000 if resource == CPU else 1)).to_integral_value(ROUND_CEILING))


def requests_of(container: Container) -> dict[str, int]:
    """Requests of one container, its limits where no request is given."""
    needs = container.resources
    if needs is None:
        return {}
    merged = {**(needs.limits or {}), **(needs.requests or {})}
    return {resource: units(resource, quantity) for resource, quantity in merged.items()}


def requests_of_pod(pod: Pod) -> dict[str, int]:
    """Effective requests: the larger of each plain init container (with the sidecars before it) and of the sum."""
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.init_containers:
        own = requests_of(container)
        if container.restartable:
            running = _sum(running, own)
            peak = _max(peak, running)
        else:
            peak = _max(peak, _sum(running, own))
    for container in pod.containers:
        running = _sum(running, requests_of(container))
    return {**_max(peak, running), PODS: 1}


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {*one, *other}}


def _max(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {key: max(one.get(key, 0), other.get(key, 0)) for key in {*one, *other}}
