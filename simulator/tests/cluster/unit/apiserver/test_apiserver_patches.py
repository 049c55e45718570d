"""The three patches, by the rules of their documents."""

from typing import Any

import pytest

from egpu_sim.cluster.apiserver.kinds import models
from egpu_sim.cluster.apiserver.patching.json_patch import PatchFailed, json_patch, merge_patch
from egpu_sim.cluster.apiserver.patching.strategic import Definitions, strategic_merge
from egpu_sim.cluster.trees import copy

DEFINITIONS = Definitions(models.definitions_for([("core_v1", "Pod")]))
POD = {"$ref": "io.k8s.api.core.v1.Pod"}


def strategic(target: Any, patch: Any) -> Any:
    before = copy(target)
    result = strategic_merge(target, patch, POD, DEFINITIONS)
    assert target == before, "the target must not be changed"
    return result


# RFC 7386, appendix A
@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result


@pytest.mark.parametrize(
    ("target", "operations", "result"),
    [
        ({"a": 1}, [{"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}),
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": 1}, [{"op": "remove", "path": "/a"}], {}),
        ({"a": [1, 2]}, [{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ({"a": {"b": 1}}, [{"op": "move", "from": "/a/b", "path": "/c"}], {"a": {}, "c": 1}),
        ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
        ({"a/b": 1, "m~n": 2}, [{"op": "replace", "path": "/a~1b", "value": 3}], {"a/b": 3, "m~n": 2}),
        ({"m~n": 2}, [{"op": "test", "path": "/m~0n", "value": 2}], {"m~n": 2}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 1}}], {"b": 1}),
    ],
)
def test_json_patch(target: Any, operations: Any, result: Any) -> None:
    before = copy(target)
    assert json_patch(target, operations) == result
    assert target == before


@pytest.mark.parametrize(
    ("operations", "malformed"),
    [
        ({"op": "add"}, True),
        ("[]", True),
        ([5], True),
        ([{"op": "add", "path": "/a"}], True),
        ([{"op": "blend", "path": "/a", "value": 1}], True),
        ([{"op": "test", "path": "/a", "value": 1}] * 10_001, True),
        ([{"op": "add", "path": "a", "value": 1}], False),
        ([{"op": "remove", "path": "/none"}], False),
        ([{"op": "add", "path": "/list/9", "value": 1}], False),
        ([{"op": "test", "path": "/a", "value": 2}], False),
        ([{"op": "add", "path": "/a/b", "value": 2}], False),
    ],
)
def test_json_patch_refuses(operations: Any, *, malformed: bool) -> None:
    target = {"a": 1, "list": []}
    with pytest.raises(PatchFailed) as refused:
        json_patch(target, operations)
    assert refused.value.malformed is malformed
    assert target == {"a": 1, "list": []}


def test_a_json_patch_can_be_applied_again() -> None:
    operations = [{"op": "add", "path": "/a", "value": []}, {"op": "add", "path": "/a/-", "value": 1}]
    assert json_patch({}, operations) == json_patch({}, operations) == {"a": [1]}


def containers(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": name, "image": image} for name, image in pairs]}}


def test_lists_with_a_key_are_merged_by_it() -> None:
    patched = strategic(containers(("a", "1"), ("b", "1")), containers(("b", "2"), ("c", "1")))
    assert patched == containers(("a", "1"), ("b", "2"), ("c", "1"))


def test_nested_keys_and_deletion() -> None:
    target = {
        "spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}]}
    }
    patch = {
        "spec": {
            "containers": [{"name": "a", "env": [{"name": "X", "$patch": "delete"}, {"name": "Y", "value": None}]}]
        }
    }
    assert strategic(target, patch) == {"spec": {"containers": [{"name": "a", "env": [{"name": "Y"}]}]}}


def test_lists_without_a_key_are_replaced() -> None:
    target = {"spec": {"tolerations": [{"key": "a"}], "containers": [{"name": "a", "args": ["x", "y"]}]}}
    patch = {"spec": {"tolerations": [{"key": "b"}], "containers": [{"name": "a", "args": ["z"]}]}}
    assert strategic(target, patch) == patch


def test_replace_retain_and_primitive_lists() -> None:
    volume = {"name": "v", "emptyDir": {}}
    target = {"metadata": {"finalizers": ["a", "b"], "labels": {"x": "1"}}, "spec": {"volumes": [volume]}}
    patch = {
        "metadata": {
            "finalizers": ["c"],
            "$deleteFromPrimitiveList/finalizers": ["a"],
            "labels": {"$patch": "replace"},
        },
        "spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "secret"], "secret": {"secretName": "s"}}]},
    }
    patched = strategic(target, patch)
    assert sorted(patched["metadata"]["finalizers"]) == ["b", "c"]
    assert patched["metadata"]["labels"] == {}
    assert patched["spec"]["volumes"] == [{"name": "v", "secret": {"secretName": "s"}}]


def test_element_order() -> None:
    order = {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}]}
    patch = {"spec": {**order, **containers(("c", "1"))["spec"]}}
    patched = strategic(containers(("a", "1"), ("own", "1")), patch)
    assert [c["name"] for c in patched["spec"]["containers"]] == ["c", "a", "own"]


def test_an_item_without_its_key_is_refused() -> None:
    with pytest.raises(PatchFailed, match="does not contain declared merge key: name"):
        strategic(containers(("a", "1")), {"spec": {"containers": [{"image": "2"}]}})
