"""What nodes have beside cards, with some pods gone: the resources that kube-scheduler counts, and its other rules as
far as they can be told from pods and nodes."""

from collections.abc import Container, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from egpu.api.allocation import PodAllocation
from egpu.api.kubernetes import Node, Pod
from egpu.api.resources import Amounts, effective_requests
from egpu.core.placement.node_filters import rejection
from egpu.core.preemption.neighbours import Neighbours
from egpu.core.preemption.population import Population

FREE_OF_NODES: Final = frozenset(
    {"configMap", "downwardAPI", "emptyDir", "hostPath", "image", "nfs", "projected", "secret"}
)
"""Volumes that every node can have, any number of times."""


class Sums:
    """What the pods of each node ask for. The pods of a node are read when it is first asked about."""

    def __init__(self, nodes: Mapping[str, Node], pods: Population) -> None:
        self._nodes = nodes
        self._asked: dict[str, Amounts] = {}
        self._pods = pods
        self._pods_on: dict[str, list[Pod]] = {}
        self._neighbours = Neighbours(nodes, pods.forbidding())

    def take(self, pods: Iterable[Pod], places: Mapping[str, PodAllocation], *, gone: Container[str]) -> bool:
        """Whether the nodes take these pods where they are to be placed, all at once, with others `gone` (UIDs)."""
        used: dict[str, Amounts] = {}
        beside: dict[str, list[Pod]] = {}
        for pod in pods:
            name = places[pod.uid].node
            if name not in self._nodes:
                return False
            if name not in used:
                used[name] = self.used(name, gone=gone)
            asked = self._request(pod)
            if rejection(pod, self._nodes[name], requests=asked, used=used[name]) is not None:
                return False
            if self._neighbours.objection(pod, name, gone=gone, beside=beside.get(name, ())):
                return False
            _add(used[name], asked)
            beside.setdefault(name, []).append(pod)
        return True

    def objection(self, pod: Pod, node: str, *, gone: Container[str]) -> str:
        """Which of its neighbours, with others `gone` (UIDs), forbids the pod to be on the node; "" where none does."""
        return self._neighbours.objection(pod, node, gone=gone)

    def used(self, node: str, *, gone: Container[str] = ()) -> Amounts:
        """What the pods of the node ask for, with others `gone` (UIDs)."""
        total: Amounts = {}
        if node not in self._pods_on:
            self._pods_on[node] = self._pods.on(node)
        for pod in self._pods_on[node]:
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
    """What the pod asks for that cannot be told from pods and nodes; "" where there is nothing."""
    for name in ("podAffinity", "podAntiAffinity"):
        affinity: dict[str, Any] = (pod.spec.affinity or {}).get(name) or {}
        if affinity.get("requiredDuringSchedulingIgnoredDuringExecution"):
            return f"spec.affinity.{name}"
    if any(one.get("whenUnsatisfiable") == "DoNotSchedule" for one in pod.spec.topology_spread_constraints or []):
        return "spec.topologySpreadConstraints"
    volumes: Sequence[dict[str, Any]] = pod.spec.volumes or []
    for volume in volumes:
        if not volume.keys() - {"name"} <= FREE_OF_NODES:
            return f"where the volume {volume.get('name', '')} can be"
    return "spec.resourceClaims" if pod.spec.resource_claims else ""
