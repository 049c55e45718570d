"""PodTopologySpread: how many more pods of a group one domain may have than the emptiest one. Pure.

Only `DoNotSchedule` filters; `ScheduleAnyway` is a preference, and this scheduler has no score for it.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from egpu_base.api.kubernetes import Node, Pod
from egpu_sim.cluster.apiserver.storage.selectors import Predicate
from egpu_sim.cluster.scheduler.neighbours import Reason, pod_predicate
from egpu_sim.cluster.trees import Json, as_object

POD_TOPOLOGY_SPREAD: Final = "PodTopologySpread"
TOO_UNEVEN: Final = Reason("node(s) didn't match pod topology spread constraints", resolvable=True)
NO_LABEL: Final = Reason(
    "node(s) didn't match pod topology spread constraints (missing required label)", resolvable=False
)


@dataclass
class Constraint:
    """One constraint, and how many of the pods that it selects each domain has."""

    key: str
    max_skew: int
    min_domains: int
    selects: Predicate
    counts_none: bool
    """kube-scheduler counts no pods for a selector without requirements."""
    honors_affinity: bool
    honors_taints: bool
    self_match: int
    counts: Counter[str] = field(default_factory=Counter[str])

    @property
    def lowest(self) -> int:
        """The global minimum; 0 while there are fewer domains than `min_domains`."""
        return min(self.counts.values()) if len(self.counts) >= max(1, self.min_domains) else 0


class Spreading:
    def __init__(self, pod: Pod, nodes: Iterable[tuple[Node, Collection[Pod], bool, bool]]) -> None:
        """`nodes`: each with its pods, and whether the pod's affinity selects it and the pod tolerates its taints."""
        self._constraints = [
            _constraint(pod, one)
            for one in pod.spec.topology_spread_constraints or ()
            if one.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
        ]
        if self.active:
            for node, pods, selected, tolerated in nodes:
                self._count(pod, node, pods, selected=selected, tolerated=tolerated)
        self._lowest = [one.lowest for one in self._constraints]

    @property
    def active(self) -> bool:
        """True if the pod has constraints that filter."""
        return bool(self._constraints)

    def _count(self, pod: Pod, node: Node, pods: Collection[Pod], *, selected: bool, tolerated: bool) -> None:
        """Only nodes with the labels of all constraints count, and pods that are not being deleted."""
        labels = node.metadata.labels or {}
        if not all(one.key in labels for one in self._constraints):
            return
        for one in self._constraints:
            if (selected or not one.honors_affinity) and (tolerated or not one.honors_taints):
                one.counts[labels[one.key]] += (
                    0
                    if one.counts_none
                    else sum(
                        other.namespace == pod.namespace
                        and other.metadata.deletion_timestamp is None
                        and one.selects(other.metadata.labels or {})
                        for other in pods
                    )
                )

    def rejects(self, node: Node) -> Reason | None:
        """Return why the node cannot take the pod, or None."""
        labels = node.metadata.labels or {}
        for one, lowest in zip(self._constraints, self._lowest, strict=True):
            if one.key not in labels:
                return NO_LABEL
            if one.counts[labels[one.key]] + one.self_match - lowest > one.max_skew:
                return TOO_UNEVEN
        return None


def _constraint(pod: Pod, given: Json) -> Constraint:
    selects = pod_predicate(given, pod)
    selector = as_object(given.get("labelSelector"))
    return Constraint(
        key=str(given.get("topologyKey")),
        max_skew=int(given.get("maxSkew") or 1),
        min_domains=int(given.get("minDomains") or 1),
        selects=selects,
        counts_none=not any(selector.values()) and not given.get("matchLabelKeys"),
        honors_affinity=given.get("nodeAffinityPolicy") != "Ignore",
        honors_taints=given.get("nodeTaintsPolicy") == "Honor",
        self_match=int(selects(pod.metadata.labels or {})),
    )
