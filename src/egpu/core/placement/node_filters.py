"""Whether a node can take a pod, as far as Kubernetes itself is concerned: kube-scheduler's filter plugins. Pure.

Order and sentences are kube-scheduler's (1.36), so that a message reads the same on both. The plugins that are not here
(volumes, ports, spreading, affinity between pods) never reject: `unsupported` names what a pod must not ask for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from egpu.api.kubernetes import Node, Pod, Taint, Toleration
from egpu.api.quantities import quantity_or_zero
from egpu.api.resources import PODS, Amounts
from egpu.core.demand.selection import selects

NODE_UNSCHEDULABLE: Final = "NodeUnschedulable"
TAINT_TOLERATION: Final = "TaintToleration"
NODE_AFFINITY: Final = "NodeAffinity"
NODE_RESOURCES_FIT: Final = "NodeResourcesFit"

UNSUPPORTED_FIELDS = ("podAffinity", "podAntiAffinity")
CORDONED: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
NOT_READY: Final = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")


@dataclass(frozen=True)
class Rejection:
    """Which plugin rejects a node and why; `resolvable`: whether fewer pods on the node could change that."""

    plugin: str
    reasons: tuple[str, ...]
    resolvable: bool = False


def rejection(pod: Pod, node: Node, *, requests: Amounts, used: Mapping[str, Fraction]) -> Rejection | None:
    """The first plugin that rejects the node, or None if the node can take the pod.

    Args:
        requests: `effective_requests(pod)`.
        used: what the pods already there hold.
    """
    if node.spec.unschedulable and not _tolerates(pod, CORDONED):
        return Rejection(NODE_UNSCHEDULABLE, ("node(s) were unschedulable",))
    if untolerated(pod, node) is not None:
        return Rejection(TAINT_TOLERATION, ("node(s) had untolerated taint(s)",))
    if not selects(pod, node):
        return Rejection(NODE_AFFINITY, ("node(s) didn't match Pod's node affinity/selector",))
    short = short_of(node, requests, used)
    if not short:
        return None
    reasons = tuple("Too many pods" if name == PODS else f"Insufficient {name}" for name in short)
    there = offered(node, short)
    return Rejection(NODE_RESOURCES_FIT, reasons, resolvable=all(requests[name] <= there[name] for name in short))


def untolerated(pod: Pod, node: Node) -> Taint | None:
    """The first taint of the node that keeps the pod away."""
    keeping = (taint for taint in _taints(node) if taint.effect in {"NoSchedule", "NoExecute"})
    return next((taint for taint in keeping if not _tolerates(pod, taint)), None)


def short_of(node: Node, requests: Amounts, used: Mapping[str, Fraction]) -> list[str]:
    """The resources of which the node has too little left; the pods come first, as kube-scheduler checks them."""
    there = offered(node, requests)
    short = [name for name, asked in requests.items() if asked > 0 and used.get(name, 0) + asked > there[name]]
    return sorted(short, key=lambda name: name != PODS)


def _taints(node: Node) -> list[Taint]:
    """The node's taints, and the one that Kubernetes' node controller, which is not here, puts on one that is not
    ready."""
    ready = any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or [])
    return [*(node.spec.taints or []), *([] if ready else [NOT_READY])]


def offered(node: Node, resources: Iterable[str]) -> Amounts:
    """What the node has of each for pods."""
    there = node.status.allocatable or node.status.capacity or {}
    return {name: quantity_or_zero(there.get(name, 0)) for name in resources}


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
