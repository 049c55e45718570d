"""Whether a node can take a pod: the default checks, without a cluster."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest

from egpu.core.demand.selection import selects
from egpu.core.placement.node_filters import Rejection, rejection, unsupported
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.resources import effective_requests


def pod(uid: str = "u", **spec: Any) -> Pod:
    spec.setdefault("containers", [container("a")])
    return msgspec.convert({"kind": "Pod", "metadata": {"name": "p", "namespace": "d", "uid": uid}, "spec": spec}, Pod)


def container(name: str, *, restart: str | None = None, **requests: str) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": requests}} | ({"restartPolicy": restart} if restart else {})


def node(*, ready: str = "True", labels: dict[str, str] | None = None, **spec: Any) -> Node:
    return msgspec.convert(
        {
            "kind": "Node",
            "metadata": {"name": "n", "labels": labels or {}},
            "spec": spec,
            "status": {
                "allocatable": {"cpu": "2", "memory": "1Gi", "pods": "3", "x.io/y": "1"},
                "conditions": [{"type": "Ready", "status": ready}],
            },
        },
        Node,
    )


def against(a_pod: Pod, a_node: Node, used: dict[str, Fraction] | None = None) -> str | None:
    found = found_against(a_pod, a_node, used)
    return None if found is None else ", ".join(found.reasons)


def found_against(a_pod: Pod, a_node: Node, used: dict[str, Fraction] | None = None) -> Rejection | None:
    return rejection(a_pod, a_node, requests=effective_requests(a_pod), used=used or {})


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ({"cpu": "2"}, None),
        ({"cpu": "2001m"}, "Insufficient cpu"),
        ({"memory": "1025Mi"}, "Insufficient memory"),
        ({"x.io/y": "2"}, "Insufficient x.io/y"),
        ({"unknown.io/z": "1"}, "Insufficient unknown.io/z"),
    ],
)
def test_resources(requests: dict[str, str], reason: str | None) -> None:
    assert against(pod(containers=[container("a", **requests)]), node()) == reason


def test_too_many_pods() -> None:
    assert against(pod(), node(), {"pods": Fraction(3)}) == "Too many pods"


def test_everything_that_a_node_is_short_of_is_said():
    greedy = pod(containers=[container("a", cpu="2001m", memory="1025Mi")])
    assert against(greedy, node(), {"pods": Fraction(3)}) == "Too many pods, Insufficient cpu, Insufficient memory"


def test_only_what_fits_an_empty_node_is_worth_an_eviction():
    asking = pod(containers=[container("a", cpu="2")])
    crowded = found_against(asking, node(), {"cpu": Fraction(1)})
    assert crowded is not None
    assert crowded.resolvable
    for hopeless in (
        found_against(pod(containers=[container("a", cpu="3")]), node()),
        found_against(asking, node(unschedulable=True)),
        found_against(pod(nodeSelector={"zone": "a"}), node()),
    ):
        assert hopeless is not None
        assert not hopeless.resolvable


def test_readiness_cordon_and_taints() -> None:
    assert against(pod(), node(ready="Unknown")) == "node(s) had untolerated taint(s)"
    patient = pod(tolerations=[{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}])
    assert against(patient, node(ready="Unknown")) is None
    assert against(pod(), node(unschedulable=True)) == "node(s) were unschedulable"
    tainted = node(taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])
    assert against(pod(), tainted) == "node(s) had untolerated taint(s)"
    for toleration in (
        {"operator": "Exists"},
        {"key": "k", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "k", "value": "v"},
    ):
        assert against(pod(tolerations=[toleration]), tainted) is None
    assert against(pod(tolerations=[{"key": "k", "value": "other"}]), tainted) is not None
    assert against(pod(tolerations=[{"key": "k", "value": "v", "effect": "NoExecute"}]), tainted) is not None


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ({"key": "model", "operator": "In", "values": ["A100"]}, True),
        ({"key": "model", "operator": "NotIn", "values": ["A100"]}, False),
        ({"key": "model", "operator": "Exists"}, True),
        ({"key": "other", "operator": "DoesNotExist"}, True),
        ({"key": "mem", "operator": "Gt", "values": ["39"]}, True),
        ({"key": "mem", "operator": "Lt", "values": ["40"]}, False),
        ({"key": "model", "operator": "Gt", "values": ["1"]}, False),
    ],
)
def test_required_node_affinity(expression: dict[str, Any], *, expected: bool) -> None:
    term = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    wanting = pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}})
    assert selects(wanting, node(labels={"model": "A100", "mem": "40"})) is expected


def test_an_empty_affinity_term_selects_nothing() -> None:
    term = {"nodeSelectorTerms": [{}]}
    assert not selects(pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}), node())


def test_node_selector() -> None:
    assert not selects(pod(nodeSelector={"zone": "a"}), node(labels={"zone": "b"}))
    assert selects(pod(nodeSelector={"zone": "a"}), node(labels={"zone": "a"}))


def test_unsupported_features_are_named() -> None:
    reason = unsupported(pod(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}))
    assert reason is not None
    assert "podAntiAffinity" in reason
    assert unsupported(pod()) is None
