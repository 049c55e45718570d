"""What nodes have beside cards, with some pods gone: the resources that kube-scheduler counts, and its other rules as
far as they can be told from the pod and the node."""

from collections.abc import Container, Iterable, Mapping
from fractions import Fraction
from typing import Any

from egpu.api.allocation import PodAllocation
from egpu.api.kubernetes import Node, Pod
from egpu.api.resources import Amounts, effective_requests
from egpu.core.placement.node_filters import rejection


class Sums:
    """What the pods of each node ask for. Each pod is counted when its node is first asked about."""

    def __init__(self, nodes: Mapping[str, Node], pods: Iterable[Pod]) -> None:
        self._nodes = nodes
        self._asked: dict[str, Amounts] = {}
        self._pods_on: dict[str, list[Pod]] = {}
        for pod in pods:
            if pod.spec.node_name and not pod.finished:
                self._pods_on.setdefault(pod.spec.node_name, []).append(pod)

    def take(self, pods: Iterable[Pod], places: Mapping[str, PodAllocation], *, gone: Container[str]) -> bool:
        """Whether the nodes take these pods where they are to be placed, all at once, with others `gone` (UIDs)."""
        used: dict[str, Amounts] = {}
        for pod in pods:
            name = places[pod.uid].node
            if name not in self._nodes:
                return False
            if name not in used:
                used[name] = self._used(name, gone)
            asked = self._request(pod)
            if rejection(pod, self._nodes[name], requests=asked, used=used[name]) is not None:
                return False
            _add(used[name], asked)
        return True

    def _used(self, node: str, gone: Container[str]) -> Amounts:
        total: Amounts = {}
        for pod in self._pods_on.get(node, ()):
            if pod.uid not in gone:
                _add(total, self._request(pod))
        return total

    def _request(self, pod: Pod) -> Amounts:
        if pod.uid not in self._asked:
            self._asked[pod.uid] = effective_requests(pod)
        return self._asked[pod.uid]


def _add(totals: Amounts, amounts: Amounts) -> None:
    for name, amount in amounts.items():
        totals[name] = totals.get(name, Fraction(0)) + amount


def only_the_scheduler_can_tell(pod: Pod) -> str:
    """What the pod asks for that cannot be told from it and a node alone; "" where there is nothing."""
    for name in ("podAffinity", "podAntiAffinity"):
        affinity: dict[str, Any] = (pod.spec.affinity or {}).get(name) or {}
        if affinity.get("requiredDuringSchedulingIgnoredDuringExecution"):
            return f"spec.affinity.{name}"
    if any(one.get("whenUnsatisfiable") == "DoNotSchedule" for one in pod.spec.topology_spread_constraints or []):
        return "spec.topologySpreadConstraints"
    return ""
