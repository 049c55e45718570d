"""Objections of Kubernetes' scheduler to a node, whatever its cards: in sentences, for people."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from egpu.core.demand.selection import MAX_COMPARED, requirement_count
from egpu.core.placement.node_filters import (
    NODE_RESOURCES_FIT,
    NODE_UNSCHEDULABLE,
    NOT_READY,
    offered,
    rejection,
    short_of,
    untolerated,
)
from egpu.core.preemption.sums import Sums
from egpu.core.schedulers import DEFAULT_SCHEDULER
from egpu_base.api.kubernetes import Node, Pod, Taint
from egpu_base.api.quantities import MIB_BYTES, format_mib
from egpu_base.api.resources import CPU, PODS, Amounts, effective_requests, whole_units

_IN_BYTES: Final = ("memory", "ephemeral-storage")


def objections(pod: Pod, nodes: Mapping[str, Node], sums: Sums) -> dict[str, str]:
    """Return the nodes that would reject `pod`, and why, such as "has zone=b, and the pod selects zone=a". Empty for a
    pod with too many requirements and tolerations."""
    if (requirement_count(pod) + len(pod.spec.tolerations or ())) * len(nodes) > MAX_COMPARED:
        return {}
    requests = effective_requests(pod)
    found = {
        name: _node_objection(pod, node, requests, sums.used(name)) or sums.objection(pod, name, gone=())
        for name, node in sorted(nodes.items())
    }
    return {name: text for name, text in found.items() if text}


def last_word(pod: Pod) -> str:
    """Return the last report of the pod's scheduler, its condition PodScheduled; "" for none."""
    scheduler = pod.spec.scheduler_name or DEFAULT_SCHEDULER
    if gates := [gate.get("name", "") for gate in pod.spec.scheduling_gates or []]:
        return f"{scheduler} ignores it until its scheduling gates are removed: {', '.join(gates)}"
    said = next((one for one in pod.status.conditions or [] if one.type == "PodScheduled"), None)
    if said is None:
        return f"{scheduler} has not reported on it yet"
    when = f" ({said.last_transition_time})" if said.last_transition_time else ""
    return f"{scheduler} said{when}: {said.message}" if said.message else ""


def _node_objection(pod: Pod, node: Node, requests: Amounts, used: Mapping[str, Fraction]) -> str:
    against = rejection(pod, node, requests=requests, used=used)
    if against is None:
        return ""
    if against.plugin == NODE_UNSCHEDULABLE:
        return "is unschedulable (kubectl uncordon)"
    if against.plugin == NODE_RESOURCES_FIT:
        return "; ".join(_shortage(name, node, requests, used) for name in short_of(node, requests, used))
    taint = untolerated(pod, node)
    if taint is None:
        return _not_selected(pod, node)
    if taint.key == NOT_READY.key:
        return "is not ready"
    return f"has the taint {_written(taint)}, which the pod does not tolerate"


def _not_selected(pod: Pod, node: Node) -> str:
    labels = node.metadata.labels or {}
    for key, value in (pod.spec.node_selector or {}).items():
        if labels.get(key) != value:
            had = f"{key}={labels[key]}" if key in labels else f"no label {key}"
            return f"has {had}, and the pod selects {key}={value}"
    return "does not match the pod's node affinity"


def _shortage(name: str, node: Node, requests: Amounts, used: Mapping[str, Fraction]) -> str:
    there = offered(node, (name,))[name]
    if name == PODS:
        return f"has its maximum of {_amount(name, there)} pods"
    free = max(there - used.get(name, Fraction(0)), Fraction(0))
    asked = _amount(name, requests[name])
    return f"has {_amount(name, free)} of {_amount(name, there)} {name} free, the pod asks for {asked}"


def _amount(name: str, amount: Fraction) -> str:
    if name in _IN_BYTES:
        return format_mib(int(amount / MIB_BYTES))
    return f"{whole_units(name, amount) / 1000:g}" if name == CPU else str(whole_units(name, amount))


def _written(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
