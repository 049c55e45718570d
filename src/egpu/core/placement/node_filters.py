"""kube-scheduler's filter plugins: whether a node can take a pod, cards aside. Pure.

Order and sentences are kube-scheduler's (1.36), so that a message reads the same on both. The plugins that are not here
(volumes, ports, spreading, affinity between pods) never reject: `unsupported` names what a pod must not ask for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from egpu.core.demand.selection import selects
from egpu_base.api.kubernetes import Node, Pod, Taint, Toleration
from egpu_base.api.quantities import quantity_or_zero
from egpu_base.api.resources import PODS, Amounts

NODE_UNSCHEDULABLE: Final = "NodeUnschedulable"
TAINT_TOLERATION: Final = "TaintToleration"
NODE_AFFINITY: Final = "NodeAffinity"
NODE_RESOURCES_FIT: Final = "NodeResourcesFit"

UNSUPPORTED_FIELDS = ("podAffinity", "podAntiAffinity")
CORDONED: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
NOT_READY: Final = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")


@dataclass(frozen=True)
class Rejection:
    """The plugin that rejects a node, and why; `resolvable`: whether fewer pods on the node could change that."""

    plugin: str
    reasons: tuple[str, ...]
    resolvable: bool = False


def rejection(pod: Pod, node: Node, *, requests: Amounts, used: Mapping[str, Fraction]) -> Rejection | None:
    """Return the first plugin that rejects the node, or None if the node can take the pod.

    Args:
        requests: `effective_requests(pod)`.
        used: the resources that the node's pods hold.
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
    """Return the first taint of the node that the pod does not tolerate."""
    keeping = (taint for taint in _taints(node) if taint.effect in {"NoSchedule", "NoExecute"})
    return next((taint for taint in keeping if not _tolerates(pod, taint)), None)


def short_of(node: Node, requests: Amounts, used: Mapping[str, Fraction]) -> list[str]:
    """Return the resources of which the node has too little left; pods come first, as in kube-scheduler."""
    there = offered(node, requests)
    short = [name for name, asked in requests.items() if asked > 0 and used.get(name, 0) + asked > there[name]]
    return sorted(short, key=lambda name: name != PODS)


def is_ready(node: Node) -> bool:
    """Return whether the node's kubelet says that it is ready."""
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or [])


def _taints(node: Node) -> list[Taint]:
    """Return the node's taints, with the one that Kubernetes' node controller puts on an unready node."""
    return [*(node.spec.taints or []), *([] if is_ready(node) else [NOT_READY])]


def offered(node: Node, resources: Iterable[str]) -> Amounts:
    """Return the node's capacity of each resource for pods."""
    there = node.status.allocatable or node.status.capacity or {}
    return {name: quantity_or_zero(there.get(name, 0)) for name in resources}


def unsupported(pod: Pod) -> str | None:
    """Return an unsupported scheduling feature that the pod asks for, or None."""
    for name in UNSUPPORTED_FIELDS:
        if (pod.spec.affinity or {}).get(name):
            return f"spec.affinity.{name} is not supported by the simulated scheduler"
    return None


def _tolerates(pod: Pod, taint: Taint) -> bool:
    return any(_tolerated(toleration, taint) for toleration in pod.spec.tolerations or [])


def _tolerated(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or (bool(toleration.key) and toleration.value == taint.value)
