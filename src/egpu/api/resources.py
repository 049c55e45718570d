"""What a pod asks of its node, as Kubernetes counts it: one arithmetic for scheduler, kubelet and policies."""

import math
import operator
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from typing import Final, Protocol, TypeAlias

from egpu.api.kubernetes import ResourceRequirements
from egpu.api.quantities import quantity_or_zero

CPU: Final = "cpu"
PODS: Final = "pods"

Amounts: TypeAlias = dict[str, Fraction]
"""By resource name, in base units: cores, bytes, pieces."""


class ContainerLike(Protocol):
    """What counts of a container: the kubelet reads more of a pod than `egpu.api.kubernetes` has."""

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
    """Requests of one container, its limits where no request is given: the API server's default; those `of` some
    resources alone, or of all.

    What is no quantity counts as 0: no API server keeps such an entry, and a sum over pods must not fail over one.
    """
    needs = container.resources
    if needs is None:
        return {}
    asked = (needs.limits or {}) | (needs.requests or {})
    return {name: quantity_or_zero(value) for name, value in asked.items() if of is None or name in of}


def effective_requests(pod: PodLike, of: Collection[str] | None = None) -> Amounts:
    """What the pod needs: the sum over its containers and sidecars, or the most that one plain init container needs
    beside the sidecars started before it, whichever is larger (KEP-753). `pods` counts the pod itself. `of` some
    resources alone, or of all."""
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
    """As a kubelet counts and says it: CPU in thousandths of a core, all else in base units, rounded up."""
    return math.ceil(amount * 1000 if resource == CPU else amount)


def _merged(one: Amounts, other: Amounts, by: Callable[[Fraction, Fraction], Fraction]) -> Amounts:
    """`by` of what both have; what only one has stays as it is: no amount is below 0, so `by` would not change it."""
    return {**one, **{name: by(one[name], amount) if name in one else amount for name, amount in other.items()}}
