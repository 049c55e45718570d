"""Conflicts with other pods of a node or its zone: host ports, and required anti-affinity of running pods.

Source: kube-scheduler's plugins NodePorts and InterPodAffinity. A term that cannot be evaluated (namespaces by label)
counts as a conflict.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from egpu.core.preemption.budgets import selects
from egpu_base.api.kubernetes import ContainerPort, LabelSelector, Node, Pod

EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")


@dataclass(frozen=True)
class _Apart:
    """A pod that must not share a value of the node label `key` with another one."""

    pod: Pod
    key: str
    value: str


class Neighbours:
    """The pods that have a node, at least all that may conflict with others."""

    def __init__(self, nodes: Mapping[str, Node], pods: Iterable[Pod]) -> None:
        self._nodes = nodes
        self._with_ports: dict[str, list[Pod]] = {}
        self._with_terms: list[Pod] = []
        for pod in pods:
            if any(_host_ports(pod)):
                self._with_ports.setdefault(pod.spec.node_name, []).append(pod)
            if _terms(pod):
                self._with_terms.append(pod)
        self._apart_from: dict[str, list[_Apart]] = {}

    def objection(self, pod: Pod, node: str, *, gone: Container[str], beside: Iterable[Pod] = ()) -> str:
        """Return which pod conflicts with the pod on the node, and why, with others `gone` (UIDs); "" for none.
        `beside`: pods that are to be placed there, too."""
        for other in (*self._with_ports.get(node, ()), *beside):
            if other.uid not in gone and (port := _shared_port(pod, other)):
                return f"pod {other.key} uses port {port} of node {node}"
        known = self._nodes.get(node)
        labels = (known.metadata.labels if known is not None else None) or {}
        for one in self._apart(pod):
            if one.pod.uid not in gone and labels.get(one.key) == one.value:
                return f"the podAntiAffinity of pod {one.pod.key} forbids {one.key}={one.value}"
        return ""

    def _apart(self, pod: Pod) -> list[_Apart]:
        """Return the pods whose terms match `pod`."""
        if pod.uid not in self._apart_from:
            self._apart_from[pod.uid] = [
                _Apart(other, term["topologyKey"], value)
                for other in self._with_terms
                for term in _terms(other)
                if (value := self._label(other.spec.node_name, term.get("topologyKey", ""))) is not None
                and _is_about(term, other, pod)
            ]
        return self._apart_from[pod.uid]

    def _label(self, node: str, key: str) -> str | None:
        known = self._nodes.get(node)
        return (known.metadata.labels or {}).get(key) if known is not None else None


def forbids(pod: Pod) -> bool:
    """Return whether this pod can conflict with others on its node or near it."""
    return bool(_terms(pod)) or any(_host_ports(pod))


def has_anti_affinity(pod: Pod) -> bool:
    """Return whether this pod forbids others to share a value of a node label with it."""
    return bool(_terms(pod))


def _host_ports(pod: Pod) -> Iterator[ContainerPort]:
    for container in pod.all_containers:
        yield from (port for port in container.ports or () if port.host_port)


def _shared_port(pod: Pod, other: Pod) -> int:
    """Return a port of the node that both ask for; 0 for none."""
    for mine in _host_ports(pod):
        for theirs in _host_ports(other):
            same = (mine.host_port, mine.protocol) == (theirs.host_port, theirs.protocol)
            if same and (mine.host_ip == theirs.host_ip or {mine.host_ip, theirs.host_ip} & set(EVERY_ADDRESS)):
                return mine.host_port
    return 0


def _terms(pod: Pod) -> list[dict[str, Any]]:
    anti: dict[str, Any] = (pod.spec.affinity or {}).get("podAntiAffinity") or {}
    return anti.get("requiredDuringSchedulingIgnoredDuringExecution") or []


def _is_about(term: Mapping[str, Any], of: Pod, pod: Pod) -> bool:
    """Return whether a term of the pod `of` matches `pod`."""
    if pod.namespace not in (term.get("namespaces") or [of.namespace]) and term.get("namespaceSelector") is None:
        return False
    try:
        return selects(msgspec.convert(term.get("labelSelector"), LabelSelector | None), pod)
    except msgspec.ValidationError:
        return True
