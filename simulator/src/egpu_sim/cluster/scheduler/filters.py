"""kube-scheduler's default filter plugins, written from its documentation, in its order and in its words (1.36). Pure.

    NodeUnschedulable   a cordoned node takes only pods that tolerate the taint of cordoned nodes
    NodeName            a pod that names its node fits nowhere else
    TaintToleration     a taint keeps away every pod that does not tolerate it
    NodeAffinity        nodeSelector, and required node affinity
    NodePorts           two pods of a node cannot have the same host port
    NodeResourcesFit    requests of a node's pods stay within its allocatable
    PodTopologySpread   see `egpu_sim.cluster.scheduler.spreading`
    InterPodAffinity    see `egpu_sim.cluster.scheduler.neighbours`

The product has its own reading of these rules (`egpu.core.placement.node_filters`). This module shares no code with it,
so that each shows the other's mistakes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

from egpu_base.api.kubernetes import ContainerPort, Node, Pod, Taint, Toleration
from egpu_base.api.quantities import quantity_or_zero
from egpu_base.api.resources import PODS
from egpu_sim.cluster.apiserver.storage.selectors import Predicate, requirement
from egpu_sim.cluster.scheduler.neighbours import INTER_POD_AFFINITY, REQUIRED, Neighbours, unknown_terms
from egpu_sim.cluster.scheduler.requests import requests_of, total
from egpu_sim.cluster.scheduler.spreading import POD_TOPOLOGY_SPREAD, Spreading
from egpu_sim.cluster.trees import Json, as_list, as_object

NODE_UNSCHEDULABLE: Final = "NodeUnschedulable"
NODE_NAME: Final = "NodeName"
TAINT_TOLERATION: Final = "TaintToleration"
NODE_AFFINITY: Final = "NodeAffinity"
NODE_PORTS: Final = "NodePorts"
NODE_RESOURCES_FIT: Final = "NodeResourcesFit"

REPELLING: Final = frozenset({"NoSchedule", "NoExecute"})
CORDONED: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
NOT_READY: Final = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")
EVERY_ADDRESS: Final = ("", "0.0.0.0")

HostPort: TypeAlias = tuple[str, str, int]
"""Address, protocol, and number."""


@dataclass(frozen=True)
class Rejection:
    """The plugin that rejects a node, and its reasons. `resolvable`: fewer pods on the node might change that."""

    plugin: str
    reasons: tuple[str, ...]
    resolvable: bool = False


@dataclass(frozen=True)
class NodeState:
    """A node, its pods, and the sum of their requests."""

    node: Node
    used: Mapping[str, Fraction]
    pods: Collection[Pod]

    def without(self, gone: Collection[Pod]) -> "NodeState":
        uids, freed = {pod.uid for pod in gone}, total(map(requests_of, gone))
        used = {name: amount - freed.get(name, 0) for name, amount in self.used.items()}
        return NodeState(self.node, used, [pod for pod in self.pods if pod.uid not in uids])

    def plus(self, pod: Pod) -> "NodeState":
        return NodeState(self.node, total([self.used, requests_of(pod)]), [*self.pods, pod])


class Filters:
    """The filters for one pod, beside the pods that the nodes have at this moment."""

    def __init__(
        self, pod: Pod, states: Mapping[str, NodeState], *, repelled: bool = True, ignored: Collection[str] = ()
    ) -> None:
        """`repelled` False: no pod has a required anti-affinity, so none needs to be looked for. `ignored`: resources
        that an extender manages and the scheduler ignores."""
        self.pod = pod
        self.requests = {name: asked for name, asked in requests_of(pod).items() if asked and name not in ignored}
        self._states, self._repelled, self._ignored = states, repelled, ignored
        self._selects = node_predicate(pod)
        self._ports = host_ports([pod])
        self._spreading = Spreading(pod, self._countable(pod))
        self._neighbours = Neighbours(pod, ((one.node, one.pods) for one in states.values()), repelled=repelled)

    def replacing(self, state: NodeState) -> "Filters":
        """Return the filters for the same pod with one node in another state."""
        if not self._spreading.active and not self._neighbours.active:
            return self
        states = {**self._states, state.node.name: state}
        return Filters(self.pod, states, repelled=self._repelled, ignored=self._ignored)

    def rejection(self, state: NodeState) -> Rejection | None:
        """Return the first plugin's rejection of the node, or None if the node can take the pod."""
        pod, node = self.pod, state.node
        if node.spec.unschedulable and not _tolerates(pod, CORDONED):
            return Rejection(NODE_UNSCHEDULABLE, ("node(s) were unschedulable",))
        if pod.spec.node_name and pod.spec.node_name != node.name:
            return Rejection(NODE_NAME, ("node(s) didn't match the requested node name",))
        if not tolerates_node(pod, node):
            return Rejection(TAINT_TOLERATION, ("node(s) had untolerated taint(s)",))
        if not self._selects(node):
            return Rejection(NODE_AFFINITY, ("node(s) didn't match Pod's node affinity/selector",))
        if self._ports and _conflict(self._ports, host_ports(state.pods)):
            reasons = ("node(s) didn't have free ports for the requested pod ports",)
            return Rejection(NODE_PORTS, reasons, resolvable=True)
        if short := self._short(state):
            reasons = tuple(text for text, _ in short)
            return Rejection(NODE_RESOURCES_FIT, reasons, resolvable=all(resolvable for _, resolvable in short))
        if reason := self._spreading.rejects(node):
            return Rejection(POD_TOPOLOGY_SPREAD, (reason.text,), resolvable=reason.resolvable)
        if reason := self._neighbours.rejects(node):
            return Rejection(INTER_POD_AFFINITY, (reason.text,), resolvable=reason.resolvable)
        return None

    def _short(self, state: NodeState) -> list[tuple[str, bool]]:
        """Return a text for each resource that the node lacks, and whether fewer pods could free enough."""
        offered = state.node.status.allocatable or state.node.status.capacity or {}
        short: list[tuple[str, bool]] = []
        for name, asked in self.requests.items():
            there = quantity_or_zero(offered.get(name, 0))
            if state.used.get(name, 0) + asked > there:
                short.append(("Too many pods", True) if name == PODS else (f"Insufficient {name}", asked <= there))
        return sorted(short, key=lambda one: one[0] != "Too many pods")

    def _countable(self, pod: Pod) -> Iterable[tuple[Node, Collection[Pod], bool, bool]]:
        for one in self._states.values():
            yield one.node, one.pods, self._selects(one.node), tolerates_node(pod, one.node)


def unsupported(pod: Pod) -> str | None:
    """Return the error for a feature that the pod asks for and this scheduler does not have, or None."""
    asked = {"spec.resources": pod.spec.resources}
    named = [*(path for path, value in asked.items() if value), *unknown_terms(pod)]
    return f"{named[0]} is not supported by the simulated scheduler" if named else None


# ---------------------------------------------------------------------- taints


def tolerates_node(pod: Pod, node: Node) -> bool:
    """Return whether the pod tolerates all taints that would keep it away. A node that is not ready has the taint that
    Kubernetes' node controller would add."""
    ready = any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or ())
    return tolerates_taints(pod, [*(node.spec.taints or ()), *(() if ready else (NOT_READY,))])


def tolerates_taints(pod: Pod, taints: Iterable[Taint]) -> bool:
    """Return whether the pod tolerates all taints with an effect that keeps pods away."""
    return all(one.effect not in REPELLING or _tolerates(pod, one) for one in taints)


def _tolerates(pod: Pod, taint: Taint) -> bool:
    return any(_matches(one, taint) for one in pod.spec.tolerations or ())


def _matches(toleration: Toleration, taint: Taint) -> bool:
    """Return whether a toleration matches. An empty effect matches every effect; an empty key with Exists, every
    taint."""
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.operator in ("", "Equal") and (toleration.key, toleration.value) == (taint.key, taint.value)


# ---------------------------------------------------------------------- labels and names of nodes


def node_predicate(pod: Pod) -> Callable[[Node], bool]:
    """Return which nodes the pod's nodeSelector and required node affinity select: all expressions of any one term."""
    wanted = (pod.spec.node_selector or {}).items()
    required = as_object((pod.spec.affinity or {}).get("nodeAffinity")).get(REQUIRED)
    if not wanted and required is None:
        return lambda _: True
    in_affinity = None if required is None else node_selector_predicate(as_object(required))

    def selects(node: Node) -> bool:
        if not wanted <= (node.metadata.labels or {}).items():
            return False
        return in_affinity is None or in_affinity(node)

    return selects


def node_selector_predicate(selector: Json) -> Callable[[Node], bool]:
    """Return which nodes a NodeSelector selects: all expressions of any one term."""
    terms = _terms(selector)

    def selects(node: Node) -> bool:
        labels, name = node.metadata.labels or {}, {"metadata.name": node.name}
        return any(
            all(one(labels) for one in expressions) and all(one(name) for one in fields)
            for expressions, fields in terms
        )

    return selects


def _terms(required: Json) -> list[tuple[list[Predicate], list[Predicate]]]:
    """Compile the terms that can match. A term that is empty or has a wrong expression matches no node."""
    found: list[tuple[list[Predicate], list[Predicate]]] = []
    for term in map(as_object, as_list(required.get("nodeSelectorTerms"))):
        expressions, fields = (as_list(term.get(name)) for name in ("matchExpressions", "matchFields"))
        if expressions or fields:
            try:
                found.append(([requirement(one) for one in expressions], [requirement(one) for one in fields]))
            except ValueError:
                continue
    return found


# ---------------------------------------------------------------------- host ports


def host_ports(pods: Iterable[Pod]) -> set[HostPort]:
    """Return the host ports of containers and sidecars."""
    running = (
        container
        for pod in pods
        for container in (*pod.containers, *(one for one in pod.init_containers if one.restart_policy == "Always"))
    )
    return {_host_port(port) for container in running for port in container.ports or () if port.host_port > 0}


def _host_port(port: ContainerPort) -> HostPort:
    return port.host_ip, port.protocol or "TCP", port.host_port


def _conflict(asked: set[HostPort], held: set[HostPort]) -> bool:
    """Return whether ports conflict: equal number and protocol, and equal addresses or one of them every address."""
    return any(
        one[1:] == other[1:] and (one[0] == other[0] or one[0] in EVERY_ADDRESS or other[0] in EVERY_ADDRESS)
        for one in asked
        for other in held
    )
