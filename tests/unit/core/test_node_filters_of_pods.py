"""Each filter plugin by an example of its documented behaviour, and the words of its rejection."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from egpu_base.api.kubernetes import Node, Pod
from egpu_sim.cluster.scheduler import preemption
from egpu_sim.cluster.scheduler.filters import Filters, NodeState, Rejection, unsupported
from egpu_sim.cluster.scheduler.neighbours import REQUIRED
from egpu_sim.cluster.scheduler.requests import requests_of, total
from egpu_sim.cluster.scheduler.usage import Usage

HOST = "kubernetes.io/hostname"
UNEVEN = "node(s) didn't match pod topology spread constraints"
NO_LABEL = f"{UNEVEN} (missing required label)"
PORTS = "node(s) didn't have free ports for the requested pod ports"
LONELY = "node(s) didn't match pod affinity rules"
REPELLED = "node(s) didn't match pod anti-affinity rules"
UNWANTED = "node(s) didn't satisfy existing pods anti-affinity rules"


def pod(
    name: str = "new", *, labels: Mapping[str, str] | None = None, namespace: str = "d", gone: bool = False, **spec: Any
) -> Pod:
    spec.setdefault("containers", [container()])
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": name, "labels": labels or {}}
    if gone:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return msgspec.convert({"kind": "Pod", "metadata": metadata, "spec": spec}, Pod)


def container(
    requests: Mapping[str, str] | None = None,
    *,
    sidecar: bool = False,
    ports: Sequence[Mapping[str, Any]] = (),
    cpu: str = "0",
) -> dict[str, Any]:
    policy = {"restartPolicy": "Always"} if sidecar else {}
    return {"name": "c", "resources": {"requests": requests or {"cpu": cpu}}, "ports": list(ports)} | policy


def node(name: str = "n", *, ready: str = "True", labels: Mapping[str, str] | None = None, **spec: Any) -> Node:
    return msgspec.convert(
        {
            "kind": "Node",
            "metadata": {"name": name, "labels": {HOST: name} | dict(labels or {})},
            "spec": spec,
            "status": {
                "allocatable": {"cpu": "2", "memory": "1Gi", "pods": "5", "x.io/y": "1"},
                "conditions": [{"type": "Ready", "status": ready}],
            },
        },
        Node,
    )


def states(*nodes: Node, pods: Mapping[str, Sequence[Pod]] | None = None) -> dict[str, NodeState]:
    placed = pods or {}
    return {
        one.name: NodeState(one, total(map(requests_of, placed.get(one.name, ()))), placed.get(one.name, ()))
        for one in nodes
    }


def on_each(a_pod: Pod, there: Mapping[str, NodeState]) -> dict[str, str | None]:
    """The reasons by node."""
    filters = Filters(a_pod, there)
    found = {name: filters.rejection(state) for name, state in there.items()}
    return {name: one and ", ".join(one.reasons) for name, one in found.items()}


def rejection(a_pod: Pod, a_node: Node, *pods: Pod) -> Rejection | None:
    there = states(a_node, pods={a_node.name: pods})
    return Filters(a_pod, there).rejection(there[a_node.name])


def against(a_pod: Pod, a_node: Node, *pods: Pod) -> str | None:
    found = rejection(a_pod, a_node, *pods)
    return found and ", ".join(found.reasons)


# ---------------------------------------------------------------------- one node alone


def test_cordoned_nodes_take_only_pods_that_tolerate_it():
    assert against(pod(), node(unschedulable=True)) == "node(s) were unschedulable"
    tolerant = pod(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}])
    assert against(tolerant, node(unschedulable=True)) is None


def test_a_pod_that_names_a_node_fits_there_only():
    assert against(pod(nodeName="m"), node()) == "node(s) didn't match the requested node name"
    assert against(pod(nodeName="n"), node()) is None


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute", "PreferNoSchedule"])
def test_taints(effect: str):
    tainted = node(taints=[{"key": "k", "value": "v", "effect": effect}])
    hard = effect != "PreferNoSchedule"
    assert against(pod(), tainted) == ("node(s) had untolerated taint(s)" if hard else None)
    for toleration in (
        {"operator": "Exists"},
        {"key": "k", "operator": "Exists"},
        {"key": "k", "operator": "Exists", "effect": effect},
        {"key": "k", "value": "v"},
        {"key": "k", "operator": "Equal", "value": "v", "effect": effect},
    ):
        assert against(pod(tolerations=[toleration]), tainted) is None, toleration
    for wrong in ({"key": "k"}, {"key": "l", "operator": "Exists"}, {"key": "k", "value": "v", "effect": "Other"}):
        assert (against(pod(tolerations=[wrong]), tainted) is None) is not hard, wrong


def test_a_node_that_is_not_ready_is_tainted():
    assert against(pod(), node(ready="Unknown")) == "node(s) had untolerated taint(s)"
    patient = pod(tolerations=[{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}])
    assert against(patient, node(ready="Unknown")) is None


def affine(*terms: Any, **spec: Any) -> Pod:
    return pod(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}, **spec)


@pytest.mark.parametrize(
    ("key", "operator", "values", "expected"),
    [
        ("model", "In", ["T4", "A100"], True),
        ("model", "In", ["T4"], False),
        ("other", "In", ["T4"], False),
        ("model", "NotIn", ["A100"], False),
        ("other", "NotIn", ["A100"], True),
        ("model", "Exists", [], True),
        ("other", "Exists", [], False),
        ("model", "DoesNotExist", [], False),
        ("other", "DoesNotExist", [], True),
        ("mem", "Gt", ["39"], True),
        ("mem", "Gt", ["40"], False),
        ("mem", "Lt", ["41"], True),
        ("other", "Lt", ["41"], False),
        ("model", "Gt", ["1"], False),
        ("mem", "Gt", ["x"], False),
        ("mem", "Near", ["40"], False),
    ],
)
def test_operators_of_node_affinity(key: str, operator: str, values: list[str], *, expected: bool):
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}
    here = node(labels={"model": "A100", "mem": "40"})
    assert against(affine(term), here) == (None if expected else "node(s) didn't match Pod's node affinity/selector")


def test_terms_of_node_affinity_are_alternatives_and_their_expressions_are_not():
    here = node(labels={"a": "1"})
    yes, no = ({"key": key, "operator": "Exists"} for key in ("a", "b"))
    assert against(affine({"matchExpressions": [yes, no]}), here) is not None
    assert against(affine({"matchExpressions": [no]}, {"matchExpressions": [yes]}), here) is None
    assert against(affine({}), here) is not None, "an empty term selects no node"
    assert against(affine(), here) is not None
    assert against(affine({"matchExpressions": [yes]}, nodeSelector={"b": "1"}), here) is not None
    assert against(pod(nodeSelector={"a": "1"}), here) is None


def test_match_fields_select_by_name():
    named = affine({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]})
    assert on_each(named, states(node("n"), node("m"))) == {
        "n": None,
        "m": "node(s) didn't match Pod's node affinity/selector",
    }


@pytest.mark.parametrize(
    ("mine", "theirs", "free"),
    [
        ({"hostPort": 80}, {"hostPort": 80}, False),
        ({"hostPort": 80}, {"hostPort": 81}, True),
        ({"hostPort": 80}, {"hostPort": 80, "protocol": "UDP"}, True),
        ({"hostPort": 80, "hostIP": "127.0.0.1"}, {"hostPort": 80, "hostIP": "127.0.0.2"}, True),
        ({"hostPort": 80, "hostIP": "127.0.0.1"}, {"hostPort": 80, "hostIP": "0.0.0.0"}, False),
        ({"hostPort": 80, "hostIP": "127.0.0.1"}, {"hostPort": 80}, False),
        ({"containerPort": 80}, {"containerPort": 80}, True),
    ],
)
def test_host_ports(mine: dict[str, Any], theirs: dict[str, Any], *, free: bool):
    other = pod("other", containers=[container()], initContainers=[container(sidecar=True, ports=[theirs])])
    found = rejection(pod(containers=[container(ports=[mine])]), node(), other)
    assert found == (None if free else Rejection("NodePorts", (PORTS,), resolvable=True))
    over = pod("over", initContainers=[container(ports=[theirs])])
    assert against(pod(containers=[container(ports=[mine])]), node(), over) is None, "an init container ends"


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ({"cpu": "2"}, None),
        ({"cpu": "2001m"}, "Insufficient cpu"),
        ({"memory": "1025Mi"}, "Insufficient memory"),
        ({"x.io/y": "2"}, "Insufficient x.io/y"),
        ({"unknown.io/z": "1"}, "Insufficient unknown.io/z"),
        ({"unknown.io/z": "0"}, None),
        ({"cpu": "3", "memory": "2Gi"}, "Insufficient cpu, Insufficient memory"),
    ],
)
def test_resources(requests: dict[str, str], reason: str | None):
    assert against(pod(containers=[container(requests)]), node()) == reason


def test_too_many_pods():
    assert against(pod(), node(), *(pod(str(each)) for each in range(5))) == "Too many pods"


def test_only_room_that_the_node_can_have_is_resolvable():
    holder = pod("holder", containers=[container(cpu="1")])
    found = rejection(pod(containers=[container(cpu="2")]), node(), holder)
    assert found == Rejection("NodeResourcesFit", ("Insufficient cpu",), resolvable=True)
    found = rejection(pod(containers=[container(cpu="3")]), node(), holder)
    assert found == Rejection("NodeResourcesFit", ("Insufficient cpu",), resolvable=False)


def test_resources_that_the_scheduler_is_told_to_ignore():
    there = states(node())
    asking = pod(containers=[container({"unknown.io/z": "1"})])
    assert Filters(asking, there, ignored=["unknown.io/z"]).rejection(there["n"]) is None


@pytest.mark.parametrize(
    ("init", "containers", "cpu"),
    [
        ([], ["1", "2"], 3),
        ([("5", False)], ["1", "2"], 5),
        ([("1", True)], ["1", "2"], 4),
        ([("1", True), ("5", False)], ["1", "2"], 6),
        ([("5", False), ("1", True)], ["1", "2"], 5),
        ([("1", True), ("2", True)], ["1"], 4),
    ],
)
def test_init_containers_and_sidecars(init: list[tuple[str, bool]], containers: list[str], cpu: int):
    asking = pod(
        initContainers=[container(sidecar=sidecar, cpu=amount) for amount, sidecar in init],
        containers=[container(cpu=amount) for amount in containers],
    )
    assert requests_of(asking) == {"cpu": Fraction(cpu), "pods": Fraction(1)}


def test_overhead_is_added_to_the_larger_of_both():
    asking = pod(initContainers=[container(cpu="5")], containers=[container(cpu="1")], overhead={"cpu": "250m"})
    assert requests_of(asking)["cpu"] == Fraction(21, 4)


# ---------------------------------------------------------------------- topology spread


def constraint(key: str = HOST, **fields: Any) -> dict[str, Any]:
    given = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}
    return given | {"labelSelector": {"matchLabels": {"app": "a"}}} | fields


def spread(labels: Mapping[str, str] | None = None, **fields: Any) -> Pod:
    return pod(labels=labels or {"app": "a"}, topologySpreadConstraints=[constraint(**fields)])


def some(count: int, *, app: str = "a", labels: Mapping[str, str] | None = None, **fields: Any) -> list[Pod]:
    return [pod(f"p{each}", labels={"app": app, **(labels or {})}, **fields) for each in range(count)]


def test_pods_go_where_the_fewest_are():
    there = states(node("a"), node("b"), pods={"a": some(1)})
    assert on_each(spread(), there) == {"a": UNEVEN, "b": None}
    found = Filters(spread(), there).rejection(there["a"])
    assert found == Rejection("PodTopologySpread", (UNEVEN,), resolvable=True)
    assert on_each(spread(maxSkew=2), there) == {"a": None, "b": None}
    assert on_each(spread(whenUnsatisfiable="ScheduleAnyway"), there) == {"a": None, "b": None}


def test_zones_of_the_documentation():
    """Four nodes in two zones; three pods, on nodes 1, 2 and 3."""
    nodes = [node(f"node{each}", labels={"zone": "A" if each < 3 else "B"}) for each in range(1, 5)]
    there = states(*nodes, pods={f"node{each}": [pod(str(each), labels={"app": "a"})] for each in range(1, 4)})
    assert on_each(spread(key="zone"), there) == {"node1": UNEVEN, "node2": UNEVEN, "node3": None, "node4": None}
    assert on_each(spread(), there) == {"node1": UNEVEN, "node2": UNEVEN, "node3": UNEVEN, "node4": None}


def test_a_node_without_the_label_takes_no_pod_and_counts_for_none():
    there = states(node("a", labels={"zone": "A"}), node("b"), pods={"a": some(1), "b": some(3)})
    assert on_each(spread(key="zone"), there) == {"a": None, "b": NO_LABEL}
    found = Filters(spread(key="zone"), there).rejection(there["b"])
    assert found is not None
    assert not found.resolvable


@pytest.mark.parametrize("fields", [{"app": "b"}, {"namespace": "other"}, {"gone": True}])
def test_only_the_group_counts(fields: dict[str, Any]):
    there = states(node("a"), node("b"), pods={"a": some(3, **fields)})
    assert on_each(spread(), there) == {"a": None, "b": None}


def test_a_pod_outside_of_the_group_adds_nothing_to_it():
    there = states(node("a"), node("b"), pods={"a": some(1)})
    assert on_each(spread({"app": "b"}), there) == {"a": None, "b": None}


def test_with_too_few_domains_the_minimum_is_zero():
    there = states(node("a"), node("b"), pods={"a": some(1), "b": some(1)})
    assert on_each(spread(minDomains=2), there) == {"a": None, "b": None}
    assert on_each(spread(minDomains=3), there) == {"a": UNEVEN, "b": UNEVEN}


def test_label_keys_narrow_the_group_to_one_revision():
    old = {"app": "a", "pod-template-hash": "1"}
    there = states(node("a"), node("b"), pods={"a": some(2, labels=old)})
    new = spread({"app": "a", "pod-template-hash": "2"}, matchLabelKeys=["pod-template-hash", "absent"])
    assert on_each(new, there) == {"a": None, "b": None}
    assert on_each(spread(old, matchLabelKeys=["pod-template-hash"]), there) == {"a": UNEVEN, "b": None}


def test_by_default_affinity_is_honoured_and_taints_are_not():
    tainted = node("c", taints=[{"key": "k", "effect": "NoSchedule"}])
    there = states(node("a", labels={"pick": "1"}), node("b"), tainted, pods={"a": some(1)})

    def on_a(**fields: str) -> str | None:
        wanting = pod(labels={"app": "a"}, nodeSelector={"pick": "1"}, topologySpreadConstraints=[constraint(**fields)])
        return on_each(wanting, there)["a"]

    assert on_a() is None, "no other node counts"
    assert on_a(nodeAffinityPolicy="Ignore") == UNEVEN
    there = states(node("a"), tainted, pods={"a": some(1)})
    assert on_each(spread(), there)["a"] == UNEVEN
    assert on_each(spread(nodeTaintsPolicy="Honor"), there)["a"] is None


def test_without_a_selector_no_pod_counts():
    there = states(node("a"), node("b"), pods={"a": some(3)})
    assert on_each(spread(labelSelector=None), there) == {"a": None, "b": None}


# ---------------------------------------------------------------------- affinity between pods


def near(kind: str, *, labels: Mapping[str, str] | None = None, key: str = HOST, **fields: Any) -> Pod:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "a"}}}
    return pod(labels=labels, affinity={kind: {REQUIRED: [term | fields]}})


def test_required_affinity_and_anti_affinity():
    zones = [node(name, labels={"zone": zone}) for name, zone in (("a", "A"), ("b", "A"), ("c", "B"))]
    there = states(*zones, node("d"), pods={"a": some(1)})
    assert on_each(near("podAffinity"), there) == {"a": None, "b": LONELY, "c": LONELY, "d": LONELY}
    assert on_each(near("podAffinity", key="zone"), there) == {"a": None, "b": None, "c": LONELY, "d": LONELY}
    assert on_each(near("podAntiAffinity"), there) == {"a": REPELLED, "b": None, "c": None, "d": None}
    assert on_each(near("podAntiAffinity", key="zone"), there) == {"a": REPELLED, "b": REPELLED, "c": None, "d": None}


def test_the_first_of_a_group_may_be_near_to_itself_alone():
    there = states(node("a"), node("b", labels={"zone": "B"}))
    assert on_each(near("podAffinity", key="zone", labels={"app": "a"}), there) == {"a": LONELY, "b": None}
    assert on_each(near("podAffinity", key="zone", labels={"app": "b"}), there) == {"a": LONELY, "b": LONELY}


def test_pods_that_are_there_keep_others_away():
    guard = near("podAntiAffinity", labels={"app": "g"})
    there = states(node("a"), node("b"), pods={"a": [guard]})
    assert on_each(pod(labels={"app": "a"}), there) == {"a": UNWANTED, "b": None}
    assert on_each(pod(labels={"app": "b"}), there) == {"a": None, "b": None}
    assert on_each(pod(labels={"app": "a"}, namespace="other"), there) == {"a": None, "b": None}


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({}, False),
        ({"namespaces": ["other"]}, True),
        ({"namespaces": ["third"]}, False),
        ({"namespaceSelector": {}}, True),
    ],
)
def test_namespaces_of_a_term(fields: dict[str, Any], *, counts: bool):
    there = states(node("a"), pods={"a": some(1, namespace="other")})
    assert on_each(near("podAntiAffinity", **fields), there) == {"a": REPELLED if counts else None}


def test_a_term_leaves_out_what_has_the_same_label():
    there = states(node("a"), pods={"a": some(1, labels={"app": "a", "team": "x"})})
    same, other = ({"app": "a", "team": team} for team in ("x", "y"))
    assert on_each(near("podAntiAffinity", labels=same, mismatchLabelKeys=["team"]), there) == {"a": None}
    assert on_each(near("podAntiAffinity", labels=other, mismatchLabelKeys=["team"]), there) == {"a": REPELLED}
    assert on_each(near("podAntiAffinity", labels=other, matchLabelKeys=["team"]), there) == {"a": None}


@pytest.mark.parametrize(
    ("asking", "path"),
    [
        (
            near("podAntiAffinity", namespaceSelector={"matchLabels": {"a": "b"}}),
            f"spec.affinity.podAntiAffinity.{REQUIRED}.namespaceSelector",
        ),
        (pod(resources={"requests": {"cpu": "1"}}), "spec.resources"),
    ],
)
def test_unsupported_features_are_named(asking: Pod, path: str):
    assert unsupported(asking) == f"{path} is not supported by the simulated scheduler"


def test_supported_features_are_not_refused():
    assert unsupported(near("podAffinity")) is None
    assert unsupported(spread()) is None


# ---------------------------------------------------------------------- preemption, and pods on their way


def test_preemption_makes_room_in_a_domain():
    there = states(node("a"), node("b", unschedulable=True), pods={"a": some(2)})
    urgent = pod(labels={"app": "a"}, priority=5, topologySpreadConstraints=[constraint()])
    filters = Filters(urgent, there)
    against_a = filters.rejection(there["a"])
    assert against_a is not None
    assert against_a.resolvable
    found = preemption.find(filters, there, {"a"})
    assert [(one.node, len(one.pods)) for one in found.candidates] == [("a", 2)]


def test_what_is_assumed_or_promised_counts():
    usage = Usage()
    usage.hold(some(1)[0], "a")
    usage.promise(pod("promised", labels={"app": "a"}), "b")
    seen = {one.name: usage.seen_by(spread(), one) for one in (node("a"), node("b"), node("c"))}
    assert on_each(spread(), seen) == {"a": UNEVEN, "b": UNEVEN, "c": None}
    assert usage.release("promised")
    seen = {one.name: usage.seen_by(spread(), one) for one in (node("a"), node("b"))}
    assert on_each(spread(), seen) == {"a": UNEVEN, "b": None}
    assert usage.on(node("a")).used["pods"] == 1
    assert not usage.repels
    usage.hold(near("podAntiAffinity"), "a")
    assert usage.repels
