"""Node selection of pods, and the card models that follow from it.

A job mix that knows which pods need which models prices the models accordingly. Pods name no models: they select nodes
by labels (the agent's `elasticgpu.io/gpu-product`, NVIDIA's, a site's own), so their models are those of the selected
nodes.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, cast

import msgspec

from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.objects import ObjectMeta

MAX_SELECTORS: Final = 1024
"""Different selectors whose models are cached."""
MAX_COMPARED: Final = 65_536
"""Requirements of a pod times nodes that are compared at once, which takes 0.3 s. API servers do not limit a pod's
requirements. A pod with more is left to kube-scheduler."""
_VALUES: Final = 32
"""Values of a requirement that cost as much as one more."""


class Selection:
    """The labels and card models of nodes; `models` looks them up by a pod's selectors."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._models: dict[str, str] = {}
        self._known: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()

    def node_changed(self, node: Node) -> None:
        """Record a node. Only its name and labels are kept."""
        kept = Node(metadata=ObjectMeta(name=node.name, labels=node.metadata.labels))
        if self._nodes.get(node.name) != kept:
            self._nodes[node.name] = kept
            self._known.clear()

    def node_deleted(self, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            self._known.clear()

    def cards_changed(self, node: str, model: str | None) -> None:
        """Record the model of the node's cards (of the first one, if they differ); None for no cards."""
        if self._models.get(node) != model:
            if model is None:
                del self._models[node]
            else:
                self._models[node] = model
            self._known.clear()

    def models(self, pod: Pod) -> tuple[str, ...]:
        """Return the models that the pod accepts, sorted; () for any, if it selects no known node, and if it has too
        many requirements to look."""
        spec = pod.spec
        affinity = (spec.affinity or {}).get("nodeAffinity")
        if not spec.node_selector and not affinity:
            return ()
        if requirement_count(pod) * len(self._models) > MAX_COMPARED:
            return ()
        text = msgspec.json.encode((spec.node_selector, affinity), order="sorted")
        key = blake2b(text, digest_size=32).digest()  # selectors may be as large as a pod
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._select(pod)
            if len(self._known) > MAX_SELECTORS:
                self._known.popitem(last=False)
        return found

    def of(self, pod: Pod, nodes: Sequence[str]) -> Sequence[str]:
        """Return those of `nodes` that the pod selects; all if it has too many requirements."""
        if not pod.spec.node_selector and not (pod.spec.affinity or {}).get("nodeAffinity"):
            return nodes
        if requirement_count(pod) * len(nodes) > MAX_COMPARED:
            return nodes
        return [name for name in nodes if name in self._nodes and selects(pod, self._nodes[name])]

    def _select(self, pod: Pod) -> tuple[str, ...]:
        having = {name: model for name, model in self._models.items() if name in self._nodes}
        chosen = {model for name, model in having.items() if selects(pod, self._nodes[name])}
        return () if chosen == set(having.values()) else tuple(sorted(chosen))


def requirement_count(pod: Pod) -> int:
    """Return how many requirements of the pod `selects` may have to compare; long lists of values count as several."""
    terms = _required_terms(pod) or ()
    count = len(pod.spec.node_selector or ()) + len(terms)
    for term in terms:
        for expression in (*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())):
            count += 1 + len(expression.get("values") or ()) // _VALUES
    return count


def selects(pod: Pod, node: Node) -> bool:
    """Return whether a node matches the pod's nodeSelector and required node affinity."""
    labels = node.metadata.labels or {}
    if any(labels.get(key) != value for key, value in (pod.spec.node_selector or {}).items()):
        return False
    terms = _required_terms(pod)
    return terms is None or any(_matches_term(term, node) for term in terms)


def _required_terms(pod: Pod) -> list[dict[str, Any]] | None:
    """Return the terms of the pod's required node affinity; None if it has none."""
    affinity = cast("dict[str, Any]", (pod.spec.affinity or {}).get("nodeAffinity") or {})
    required = cast("dict[str, Any] | None", affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    return None if required is None else cast("list[dict[str, Any]]", required.get("nodeSelectorTerms") or [])


def _matches_term(term: dict[str, Any], node: Node) -> bool:
    labels = node.metadata.labels or {}
    expressions = cast("list[dict[str, Any]]", term.get("matchExpressions") or [])
    fields = cast("list[dict[str, Any]]", term.get("matchFields") or [])
    if not expressions and not fields:
        return False  # an empty term selects nothing
    return all(_matches(expression, labels) for expression in expressions) and all(
        _matches(expression, {"metadata.name": node.name}) for expression in fields
    )


def _matches(expression: dict[str, Any], labels: Mapping[str, str]) -> bool:
    value = labels.get(cast("str", expression.get("key")))
    values = cast("list[str]", expression.get("values") or [])
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            # API servers do not check for numbers; for kube-scheduler a pair with a non-number never matches.
            pair = (_whole(value), _whole(values[0] if values else None))
            if pair[0] is None or pair[1] is None:
                return False
            return pair[0] > pair[1] if operator == "Gt" else pair[0] < pair[1]
        case _:
            return False


def _whole(value: str | None) -> int | None:
    try:
        return int(value) if value is not None else None
    except ValueError:
        return None
