"""The product's reading of kube-scheduler's filters and the simulated scheduler's own give the same answer."""

from fractions import Fraction
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from egpu.core.placement import node_filters as product
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.resources import effective_requests
from egpu_sim.cluster.scheduler.filters import Filters, NodeState
from egpu_sim.cluster.scheduler.neighbours import REQUIRED
from egpu_sim.cluster.scheduler.requests import requests_of

keys = st.sampled_from(("a", "b", "node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready"))
values = st.sampled_from(("", "1", "2", "10", "x"))
labels = st.dictionaries(keys, values, max_size=3)
effects = st.sampled_from(("NoSchedule", "NoExecute", "PreferNoSchedule"))
amounts = st.dictionaries(
    st.sampled_from(("cpu", "memory", "x.io/y")), st.sampled_from(("0", "1", "500m", "2", "3")), max_size=3
)


@st.composite
def expressions(draw: st.DrawFn) -> dict[str, Any]:
    operator = draw(st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")))
    given = draw(st.lists(values, min_size=1, max_size=1 if operator in ("Gt", "Lt") else 3))
    return {"key": draw(keys), "operator": operator, "values": [] if operator.endswith(("ists", "Exist")) else given}


@st.composite
def terms(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(("n", "m")), max_size=1))
    fields = [{"key": "metadata.name", "operator": draw(st.sampled_from(("In", "NotIn"))), "values": names}]
    return {"matchExpressions": draw(st.lists(expressions(), max_size=2)), "matchFields": fields if names else []}


@st.composite
def tolerations(draw: st.DrawFn) -> dict[str, Any]:
    """As an API server keeps them: without a key or with Exists, there is no value."""
    operator = draw(st.sampled_from(("", "Equal", "Exists")))
    key = draw(keys) if operator != "Exists" or draw(st.booleans()) else ""
    value = {} if operator == "Exists" else {"value": draw(values)}
    return {"key": key, "operator": operator, "effect": draw(st.one_of(st.just(""), effects))} | value


def containers(draw: st.DrawFn, most: int, *, init: bool = False) -> list[dict[str, Any]]:
    made = draw(st.lists(st.tuples(amounts, st.booleans()), min_size=0 if init else 1, max_size=most))
    return [
        {"name": "c", "resources": {"requests": asked}} | ({"restartPolicy": "Always"} if init and sidecar else {})
        for asked, sidecar in made
    ]


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    required = draw(st.one_of(st.none(), st.lists(terms(), max_size=2)))
    spec: dict[str, Any] = {
        "containers": containers(draw, 2),
        "initContainers": containers(draw, 3, init=True),
        "nodeSelector": draw(st.one_of(st.none(), st.dictionaries(keys, values, max_size=1))),
        "tolerations": draw(st.lists(tolerations(), max_size=2)),
    }
    if required is not None:
        spec["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": required}}}
    return msgspec.convert({"kind": "Pod", "metadata": {"name": "p", "uid": "p"}, "spec": spec}, Pod)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    taints = draw(st.lists(st.fixed_dictionaries({"key": keys, "value": values, "effect": effects}), max_size=2))
    body = {
        "kind": "Node",
        "metadata": {"name": draw(st.sampled_from(("n", "m"))), "labels": draw(labels)},
        "spec": {"unschedulable": draw(st.booleans()), "taints": taints},
        "status": {
            "allocatable": draw(amounts) | {"pods": draw(st.sampled_from(("1", "2")))},
            "conditions": [{"type": "Ready", "status": draw(st.sampled_from(("True", "True", "False", "Unknown")))}],
        },
    }
    return msgspec.convert(body, Node)


@settings(max_examples=400)
@given(pods(), nodes(), st.dictionaries(st.sampled_from(("cpu", "memory", "pods")), st.integers(0, 2), max_size=3))
def test_both_readings_agree(pod: Pod, node: Node, held: dict[str, int]):
    asked = effective_requests(pod)
    assert {name: amount for name, amount in requests_of(pod).items() if amount} == {
        name: amount for name, amount in asked.items() if amount
    }
    used = {name: Fraction(amount) for name, amount in held.items()}
    state = NodeState(node, used, ())
    mine = Filters(pod, {node.name: state}).rejection(state)
    theirs = product.rejection(pod, node, requests=asked, used=used)
    assert (mine is None) == (theirs is None), (mine, theirs)
    if mine is not None and theirs is not None:
        assert (mine.plugin, set(mine.reasons)) == (theirs.plugin, set(theirs.reasons))
        assert mine.resolvable == theirs.resolvable
