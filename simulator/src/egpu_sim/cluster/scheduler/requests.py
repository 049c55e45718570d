"""The resources that a pod requests, as kube-scheduler adds them up (KEP-753, and pod overhead). Pure."""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from egpu_base.api.kubernetes import Container, Pod
from egpu_base.api.quantities import Quantity, quantity_or_zero
from egpu_base.api.resources import PODS, Amounts


def requests_of(pod: Pod) -> Amounts:
    """Return what the pod holds of its node, by resource; `pods` counts the pod itself.

    A sidecar runs from its start to the pod's end. Any other init container runs alone beside the sidecars that
    started before it, so the pod needs the larger of that peak and the sum of all that runs afterwards.
    """
    beside, peak = Amounts(), Amounts()
    for container in pod.init_containers:
        asked = total([beside, _requests(container)])
        peak = {name: max(peak.get(name, Fraction(0)), asked.get(name, Fraction(0))) for name in peak | asked}
        if container.restart_policy == "Always":
            beside = asked
    running = total([beside, *map(_requests, pod.containers)])
    most = {name: max(peak.get(name, Fraction(0)), running.get(name, Fraction(0))) for name in peak | running}
    return total([most, _amounts(pod.spec.overhead), {PODS: Fraction(1)}])


def total(parts: Iterable[Mapping[str, Fraction]]) -> Amounts:
    """Return the sum by resource."""
    found = Amounts()
    for part in parts:
        for name, amount in part.items():
            found[name] = found[name] + amount if name in found else amount
    return found


def _requests(container: Container) -> Amounts:
    return _amounts(container.resources.requests) if container.resources is not None else {}


def _amounts(quantities: Mapping[str, Quantity] | None) -> Amounts:
    return {name: quantity_or_zero(value) for name, value in (quantities or {}).items()}
