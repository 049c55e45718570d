"""Warnings of `status.typeChecking`, with what a Kubernetes control plane (1.36) says of the same expressions."""

from typing import Any

import pytest

from egpu_sim.cluster.apiserver.admission.type_checking import expression_warnings
from egpu_sim.cluster.apiserver.kinds.builtin import kind_of

NO_RANGE = "expression of type 'NodeStatus' cannot be range of a comprehension"


def warned(*expressions: str, resources: tuple[str, ...] = ("pods",), **variables: str) -> dict[str, str]:
    spec: dict[str, Any] = {
        "matchConstraints": {
            "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": list(resources)}]
        },
        "variables": [{"name": name, "expression": text} for name, text in variables.items()],
        "validations": [{"expression": text} for text in expressions],
    }
    return {one["fieldRef"]: one["warning"] for one in expression_warnings(spec, kind_of)}


@pytest.mark.parametrize(
    ("expression", "resources", "problem"),
    [
        ("has(object.status.phase)", ("pods", "bindings"), "/v1, Kind=Binding: undefined field 'status'"),
        ("object.spec.nodeName == ''", ("nodes",), "/v1, Kind=Node: undefined field 'nodeName'"),
        ("variables.written.spec.nodeName == ''", ("nodes",), "/v1, Kind=Node: undefined field 'nodeName'"),
        ("object.spec.taints[0].colour == ''", ("nodes",), "/v1, Kind=Node: undefined field 'colour'"),
        ("object.status['phase'] == ''", ("nodes",), "/v1, Kind=Node: found no matching overload for NodeStatus[…]"),
        ("object.status.all(k, k != '')", ("nodes",), f"/v1, Kind=Node: {NO_RANGE}"),
    ],
)  # fmt: skip
def test_a_field_that_a_kind_lacks_is_warned_of(expression: str, resources: tuple[str, ...], problem: str) -> None:
    written = 'request.operation == "DELETE" ? oldObject : object'
    said = warned("true", expression, resources=resources, written=written)
    assert said == {"spec.validations[1].expression": problem}


@pytest.mark.parametrize(
    "expression",
    [
        "dyn(object).status.phase == ''",
        "variables.it.spec.nodeName == ''",
        "variables.other.spec.nodeName == ''",
        "object.metadata.labels['a'].startsWith(object.metadata.annotations.b)",
        "object.metadata.labels.all(k, k.colour == '')",
        "object.spec.taints.exists(one, one.key == oldObject.spec.taints[size(object.spec.taints)].key)",
        "request.object.spec.nodeName == ''",
    ],
)
def test_nothing_is_said_of_fields_that_exist_or_have_no_type(expression: str) -> None:
    other = "variables.it == null ? 1 : 2"
    assert warned(expression, resources=("nodes",), it="dyn(object)", other=other) == {}


def test_subresources_and_wildcards_name_no_kind() -> None:
    assert warned("object.nothing == ''", resources=("pods/*", "*", "pods/status")) == {}
