"""The resources that a pod requests, as Kubernetes counts them: one arithmetic for scheduler, kubelet and policies."""

import math
import operator
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from typing import Final, Protocol, TypeAlias

from egpu_base.api.kubernetes import ResourceRequirements
from egpu_base.api.quantities import quantity_or_zero

CPU: Final = "cpu"
PODS: Final = "pods"

Amounts: TypeAlias = dict[str, Fraction]
"""Amounts by resource name, in base units: cores, bytes, pieces."""


class ContainerLike(Protocol):
    """The part of a container that counts here: the kubelet reads more of a pod than `egpu_base.api.kubernetes` has."""

    @property
    def resources(self) -> ResourceRequirements | None: ...

    @property
    def restart_policy(self) -> str | None: ...


class PodLike(Protocol):
    @property
    def containers(self) -> Sequence[ContainerLike]: ...

    @property
    def init_containers(self) -> Sequence[ContainerLike]: ...


def container_requests(container: ContainerLike, of: Collection[str] | None = None) -> Amounts:
    """Return the requests of one container, with its limits where it has no request (the API server's default): those
    `of` some resources, or of all.

    An invalid quantity counts as 0: no API server keeps such an entry, and a sum over pods must not fail over one.
    """
    needs = container.resources
    if needs is None:
        return {}
    asked = (needs.limits or {}) | (needs.requests or {})
    return {name: quantity_or_zero(value) for name, value in asked.items() if of is None or name in of}


def effective_requests(pod: PodLike, of: Collection[str] | None = None) -> Amounts:
    """Return the pod's need: the sum over its containers and sidecars, or the most that one plain init container needs
    beside the sidecars started before it, whichever is larger (KEP-753). `pods` counts the pod itself. `of` selects
    some resources; without it all count."""
    running: Amounts = {}
    peak: Amounts = {}
    for container in pod.init_containers:
        beside = _merged(running, container_requests(container, of), operator.add)
        peak = _merged(peak, beside, max)
        if container.restart_policy == "Always":
            running = beside
    for container in pod.containers:
        running = _merged(running, container_requests(container, of), operator.add)
    return _merged(peak, running, max) | {PODS: Fraction(1)}


def whole_units(resource: str, amount: Fraction) -> int:
    """Return an amount in a kubelet's units: CPU in thousandths of a core, all else in base units, rounded up."""
    return math.ceil(amount * 1000 if resource == CPU else amount)


def _merged(one: Amounts, other: Amounts, by: Callable[[Fraction, Fraction], Fraction]) -> Amounts:
    """Apply `by` where both have a value. A single value stays: no amount is below 0, so `by` would not change it."""
    return {**one, **{name: by(one[name], amount) if name in one else amount for name, amount in other.items()}}
