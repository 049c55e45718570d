"""Whether a node can take a pod, as far as Kubernetes itself is concerned. Pure.

The order and the sentences follow kube-scheduler's default filters, so that a message reads the same on both.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from egpu.api.kubernetes import Container, Node, Pod, Taint, Toleration
from egpu.core.demand.selection import selects
from egpu.embedded.apiserver import quantity

Resources = dict[str, Fraction]
"""Amounts by resource name, in base units: cores, bytes, pieces."""

UNSUPPORTED_FIELDS = ("podAffinity", "podAntiAffinity")


def requests_of(pod: Pod) -> Resources:
    """What the pod needs: the sum over its containers and sidecars, or the most that one init container needs while the
    sidecars started before it run (KEP-753), whichever is larger. `pods` counts the pod itself."""
    sidecars: Resources = {}
    peak: Resources = {}
    for container in pod.init_containers:
        own = _requests(container)
        if container.restart_policy == "Always":
            sidecars = _sum(sidecars, own)
            peak = _most(peak, sidecars)
        else:
            peak = _most(peak, _sum(sidecars, own))
    running = sidecars
    for container in pod.containers:
        running = _sum(running, _requests(container))
    return _most(peak, running) | {"pods": Fraction(1)}


def allocatable_of(node: Node) -> Resources:
    """What the node offers, by resource name."""
    offered = node.status.allocatable or node.status.capacity or {}
    return {name: quantity.parse(value) for name, value in offered.items()}


def reason_against(pod: Pod, node: Node, *, requests: Resources, used: Mapping[str, Fraction]) -> str | None:
    """Why the node cannot take the pod, in a few words, or None if it can.

    Args:
        requests: `requests_of(pod)`.
        used: what the pods already there hold.
    """
    if node.metadata.deletion_timestamp is not None:
        return "node(s) were being deleted"
    if node.spec.unschedulable and not _tolerates(
        pod, Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
    ):
        return "node(s) were unschedulable"
    if not any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or []):
        return "node(s) were not ready"
    for taint in node.spec.taints or []:
        if taint.effect in {"NoSchedule", "NoExecute"} and not _tolerates(pod, taint):
            return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
    if not selects(pod, node):
        return "node(s) didn't match Pod's node affinity/selector"
    offered = allocatable_of(node)
    for name, amount in requests.items():
        if amount > 0 and used.get(name, Fraction(0)) + amount > offered.get(name, Fraction(0)):
            return "Too many pods" if name == "pods" else f"Insufficient {name}"
    return None


def unsupported(pod: Pod) -> str | None:
    """A scheduling feature that the pod asks for and this scheduler does not have, or None."""
    for name in UNSUPPORTED_FIELDS:
        if (pod.spec.affinity or {}).get(name):
            return f"spec.affinity.{name} is not supported by the embedded scheduler"
    return None


def _tolerates(pod: Pod, taint: Taint) -> bool:
    return any(_tolerated(toleration, taint) for toleration in pod.spec.tolerations or [])


def _tolerated(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or (bool(toleration.key) and toleration.value == taint.value)


def _requests(container: Container) -> Resources:
    resources = container.resources
    if resources is None:
        return {}
    # A limit without a request is a request (the API server's defaulting; a pod may reach us before it).
    merged = (resources.limits or {}) | (resources.requests or {})
    return {name: quantity.parse(value) for name, value in merged.items()}


def _sum(left: Resources, right: Resources) -> Resources:
    return {name: left.get(name, Fraction(0)) + right.get(name, Fraction(0)) for name in _names(left, right)}


def _most(left: Resources, right: Resources) -> Resources:
    return {name: max(left.get(name, Fraction(0)), right.get(name, Fraction(0))) for name in _names(left, right)}


def _names(left: Resources, right: Resources) -> Iterable[str]:
    return left.keys() | right.keys()
