"""The other resources of nodes, without some pods, by those rules of kube-scheduler that pods and nodes show."""

from collections.abc import Container, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, Final

from egpu.api.allocation import PodAllocation
from egpu.core.demand.selection import requirement_count
from egpu.core.placement.node_filters import rejection
from egpu.core.preemption.neighbours import Neighbours
from egpu.core.preemption.population import Population
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.resources import Amounts, effective_requests

FREE_OF_NODES: Final = frozenset(
    {"configMap", "downwardAPI", "emptyDir", "hostPath", "image", "nfs", "projected", "secret"}
)
"""Volumes that every node can have, any number of times."""
RESOURCE_CLAIMS: Final = "spec.resourceClaims"
MAX_REQUIREMENTS: Final = 256
"""Requirements and tolerations of one pod that a search compares with nodes, again and again."""


class Sums:
    """The requests of each node's pods. They are read when the node is first needed."""

    def __init__(self, nodes: Mapping[str, Node], pods: Population) -> None:
        self._nodes = nodes
        self._asked: dict[str, Amounts] = {}
        self._pods = pods
        self._pods_on: dict[str, list[Pod]] = {}

    @cached_property
    def _neighbours(self) -> Neighbours:
        return Neighbours(self._nodes, self._pods.forbidding())

    def take(self, pods: Iterable[Pod], places: Mapping[str, PodAllocation], *, gone: Container[str]) -> bool:
        """Return whether the nodes take these pods at their places, all at once, with others `gone` (UIDs)."""
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
        """Return which neighbour conflicts with the pod on the node, with others `gone` (UIDs); "" for none."""
        return self._neighbours.objection(pod, node, gone=gone)

    def used(self, node: str, *, gone: Container[str] = ()) -> Amounts:
        """Return the requests of the node's pods, without those `gone` (UIDs)."""
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
    """Return what the pod asks for that pods and nodes do not show; "" for nothing."""
    for name in ("podAffinity", "podAntiAffinity"):
        affinity: dict[str, Any] = (pod.spec.affinity or {}).get(name) or {}
        if affinity.get("requiredDuringSchedulingIgnoredDuringExecution"):
            return f"spec.affinity.{name}"
    if any(one.get("whenUnsatisfiable") == "DoNotSchedule" for one in pod.spec.topology_spread_constraints or []):
        return "spec.topologySpreadConstraints"
    volumes: Sequence[dict[str, Any]] = pod.spec.volumes or []
    for volume in volumes:
        if not volume.keys() - {"name"} <= FREE_OF_NODES:
            return f"the volume {volume.get('name', '')}"
    if (count := requirement_count(pod) + len(pod.spec.tolerations or ())) > MAX_REQUIREMENTS:
        return f"{count} requirements on nodes, more than {MAX_REQUIREMENTS},"
    return RESOURCE_CLAIMS if pod.spec.resource_claims else ""
