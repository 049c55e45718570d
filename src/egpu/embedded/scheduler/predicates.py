"""Whether a node can take a pod, as far as Kubernetes itself is concerned. Pure.

The order and the sentences follow kube-scheduler's default filters, so that a message reads the same on both.
"""

from collections.abc import Mapping
from fractions import Fraction

from egpu.api.kubernetes import Node, Pod, Taint, Toleration
from egpu.api.quantities import quantity_or_zero
from egpu.api.resources import PODS, Amounts
from egpu.core.demand.selection import selects

UNSUPPORTED_FIELDS = ("podAffinity", "podAntiAffinity")


def reason_against(pod: Pod, node: Node, *, requests: Amounts, used: Mapping[str, Fraction]) -> str | None:
    """Why the node cannot take the pod, in a few words, or None if it can.

    Args:
        requests: `effective_requests(pod)`.
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
    offered = node.status.allocatable or node.status.capacity or {}
    for name, amount in requests.items():
        if amount > 0 and used.get(name, Fraction(0)) + amount > quantity_or_zero(offered.get(name, 0)):
            return "Too many pods" if name == PODS else f"Insufficient {name}"
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
