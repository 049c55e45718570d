"""InterPodAffinity: required affinity and anti-affinity between pods. Pure. Preferences have no score here.

A term selects pods by labels and namespace. It is about a domain: all nodes with one value of its `topologyKey`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from egpu_base.api.kubernetes import Node, Pod
from egpu_sim.cluster.apiserver.storage.selectors import Predicate, object_selector
from egpu_sim.cluster.trees import Json, as_list, as_object

INTER_POD_AFFINITY: Final = "InterPodAffinity"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
AFFINITY: Final = "podAffinity"
ANTI_AFFINITY: Final = "podAntiAffinity"


@dataclass(frozen=True)
class Reason:
    """A sentence of kube-scheduler's. `resolvable`: fewer pods on the node might change it."""

    text: str
    resolvable: bool


LONELY: Final = Reason("node(s) didn't match pod affinity rules", resolvable=False)
REPELLED: Final = Reason("node(s) didn't match pod anti-affinity rules", resolvable=True)
UNWANTED: Final = Reason("node(s) didn't satisfy existing pods anti-affinity rules", resolvable=True)


@dataclass(frozen=True)
class Term:
    """One required term. `namespaces` None stands for all."""

    key: str
    selects: Predicate
    namespaces: frozenset[str] | None

    def about(self, pod: Pod) -> bool:
        return (self.namespaces is None or pod.namespace in self.namespaces) and self.selects(pod.metadata.labels or {})


class Neighbours:
    """The terms of one pod, and those of other pods about it."""

    def __init__(self, pod: Pod, nodes: Iterable[tuple[Node, Collection[Pod]]], *, repelled: bool) -> None:
        """`nodes`: each with its pods. `repelled`: other pods may have an anti-affinity."""
        self._near, self._far = terms(pod, AFFINITY), terms(pod, ANTI_AFFINITY)
        self.active = bool(self._near or self._far or repelled)
        self._attracting, self._repelling = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        self._unwanted = set[tuple[str, str]]()
        for node, pods in nodes if self.active else ():
            labels = node.metadata.labels or {}
            for other in pods:
                self._count(pod, other, labels)
        self._first_of_its_group = not self._attracting and all(one.about(pod) for one in self._near)

    def _count(self, pod: Pod, other: Pod, labels: Mapping[str, str]) -> None:
        if self._near and all(one.about(other) for one in self._near):
            self._attracting.update((one.key, labels[one.key]) for one in self._near if one.key in labels)
        self._repelling.update(
            (one.key, labels[one.key]) for one in self._far if one.key in labels and one.about(other)
        )
        self._unwanted.update(
            (one.key, labels[one.key]) for one in terms(other, ANTI_AFFINITY) if one.key in labels and one.about(pod)
        )

    def rejects(self, node: Node) -> Reason | None:
        """Return why the node cannot take the pod, or None. The first pod of a group that is only near to itself fits
        on every node with the labels."""
        labels = node.metadata.labels or {}
        if any(one.key not in labels for one in self._near):
            return LONELY
        near = all((one.key, labels[one.key]) in self._attracting for one in self._near)
        if not near and not self._first_of_its_group:
            return LONELY
        if any(one.key in labels and (one.key, labels[one.key]) in self._repelling for one in self._far):
            return REPELLED
        return UNWANTED if self._unwanted and not self._unwanted.isdisjoint(labels.items()) else None


def repels(pod: Pod) -> bool:
    """Return whether the pod has a required anti-affinity."""
    return bool(_given(pod, ANTI_AFFINITY))


def terms(pod: Pod, kind: str) -> list[Term]:
    return [
        Term(str(one.get("topologyKey")), pod_predicate(one, pod), _namespaces(one, pod)) for one in _given(pod, kind)
    ]


def unknown_terms(pod: Pod) -> Iterable[str]:
    """Name the paths of selectors of namespaces by labels, which this scheduler does not see."""
    for kind in (AFFINITY, ANTI_AFFINITY):
        if any(any(as_object(one.get("namespaceSelector")).values()) for one in _given(pod, kind)):
            yield f"spec.affinity.{kind}.{REQUIRED}.namespaceSelector"


def pod_predicate(term: Json, pod: Pod) -> Predicate:
    """Return which labels a term of the pod selects: its labelSelector, and the pod's own values of `matchLabelKeys`
    and none of its values of `mismatchLabelKeys`. Without a labelSelector, none."""
    selector, own = term.get("labelSelector"), pod.metadata.labels or {}
    if selector is None:
        return lambda _: False
    by_own_labels = [
        {"key": key, "operator": operator, "values": [own[key]]}
        for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
        for key in as_list(term.get(field))
        if key in own
    ]
    expressions = [*as_list(as_object(selector).get("matchExpressions")), *by_own_labels]
    return object_selector({**as_object(selector), "matchExpressions": expressions}) or (lambda _: True)


def _given(pod: Pod, kind: str) -> list[Json]:
    return as_list(as_object((pod.spec.affinity or {}).get(kind)).get(REQUIRED)) if pod.spec.affinity else []


def _namespaces(term: Json, pod: Pod) -> frozenset[str] | None:
    """Return the named namespaces, or all for an empty namespaceSelector; by default the pod's own."""
    if term.get("namespaceSelector") is not None:
        return None
    return frozenset(as_list(term.get("namespaces"))) or frozenset({pod.namespace})
