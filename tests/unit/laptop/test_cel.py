"""The CEL that the simulated API server evaluates: our own conditions, CEL's rules about errors, refusals."""

from typing import Any

import pytest

from egpu.api import names
from egpu.apps.controller.webhooks import asks_for_a_gpu, gives_out_cards
from egpu_base.cel.grammar import EvaluationError, NotUnderstood, Question, compiled


def holds(text: str, obj: Any = None, **request: Any) -> bool:
    may = Question(lambda asked: asked == {"group": "g", "resource": "r", "check": "read"})
    return compiled(text)({"object": obj, "oldObject": None, "request": request, "authorizer": may})


def pod(annotations: dict[str, str] | None = None, **resources: dict[str, str]) -> dict[str, Any]:
    container = {"name": "c", "resources": resources} if resources else {"name": "c"}
    meta: dict[str, Any] = {"name": "p"} if annotations is None else {"name": "p", "annotations": annotations}
    return {"metadata": meta, "spec": {"containers": [{"name": "first", "resources": {}}, container]}}


@pytest.mark.parametrize(
    ("obj", "seen"),
    [
        (pod(), False),
        (pod(limits={"cpu": "1"}, requests={"cpu": "1"}), False),
        (pod(limits={names.NVIDIA_GPU: "1"}), True),
        (pod(requests={names.ALIYUN_GPU_MEM: "1"}), True),
        (pod(limits={names.SLOT: "1"}), True),
        (pod({"note": "x"}), False),
        (pod({names.ALLOCATION: "{}"}), True),
        (pod({names.CLAIM_PREFIXES[1] + "c": "claim"}), True),
        (
            {**pod(), "spec": {"containers": [], "initContainers": pod(limits={names.GPU: "1"})["spec"]["containers"]}},
            True,
        ),
    ],
)
def test_the_webhook_is_asked_about_pods_with_gpus_and_no_others(obj: dict[str, Any], seen: bool):
    assert holds(asks_for_a_gpu(), obj) is seen


def test_bindings_are_looked_at_only_when_they_bring_annotations_of_ours():
    assert not holds(gives_out_cards(), {"metadata": {"name": "p"}})
    assert not holds(gives_out_cards(), {"metadata": {"name": "p", "annotations": {"note": "x"}}})
    assert holds(gives_out_cards(), {"metadata": {"name": "p", "annotations": {names.CARDS_PREFIX + "c": "GPU-1"}}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('object.a == 1 && object["b"] != "x"', True),
        ("!(object.a in [2, 3])", True),
        ('"k" in object.map && has(object.map.k) && !has(object.map.other)', True),
        ("object.list.all(x, x.startsWith('v')) && size(object.list) == 2", True),
        ('object.list.exists(x, x.endsWith("2") && x.contains("v"))', True),
        ('request.userInfo.username == "me"', True),
        ("object.missing == 1 || true", True),
        ("true || object.missing == 1", True),
        ("object.missing == 1 && false", False),
        ("oldObject == null", True),
        ("false || (true && !true)", False),
        ("object.a == 1 ? has(object.b) : object.missing", True),
        ("has(object.missing) ? true : false ? true : false", False),
        ('"v" + "1" in object.list && "v3" in object.list + ["v" + "3"]', True),
        ('object.list[0] == "v1"', True),
        ('authorizer.group("g").resource("r").check("read").allowed()', True),
        ('authorizer.group("g").resource("r").check("write").allowed()', False),
        ('authorizer.group("g").resource("r").subresource("s").check("read").allowed()', False),
    ],
)
def test_values_operators_and_the_errors_that_do_not_matter(text: str, expected: bool):
    obj = {"a": 1, "b": "y", "map": {"k": None}, "list": ["v1", "v2"]}
    assert holds(text, obj, userInfo={"username": "me"}) is expected


@pytest.mark.parametrize(
    "text",
    ["object.missing == 1", "object.missing == 1 || false", "has(object.a.b)", "object.a", "!object.a", '1 in "1"',
     "object.a + object", "object.allowed()", "object.check('a')", "object.a ? true : false",
     "object.a.exists(x, true)", 'object.a.startsWith("x")', 'object["z"] == 1'],
)  # fmt: skip
def test_what_is_not_there_is_an_error(text: str):
    with pytest.raises(EvaluationError):
        holds(text, {"a": 1})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("object.a.find('x')", r"function \.find\(\)"),
        ("int(object.a) == 1", r"function int\(\)"),
        ("variables.a", "variable 'variables'"),
        ("object.a - 1", "'-'"),
        ("object.list.exists(x, true) && x == 1", "variable 'x'"),
        ("object.a * 2", "'*'"),
        ("object.a ? true", "the end"),
        ("authorizer.serviceAccount('a', 'b')", r"function \.serviceAccount\(\)"),
        ("object.a == 1)", r"'\)'"),
        ("has(object)", r"'\)' where '\.'"),
        ("", "the end"),
        ("(" * 40 + "true" + ")" * 40, "deeper"),
        ("true" + " " * 6000, "longer"),
        ('"\\q" == "q"', "string"),
    ],
)
def test_what_it_does_not_know_is_refused_by_name(text: str, words: str):
    with pytest.raises(NotUnderstood, match=words):
        compiled(text)
