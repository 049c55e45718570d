"""Claims of a pod's own, from templates in its annotations."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.objects import ElasticGPUClaim
from egpu.core.admission import mutate_pod, validate_pod_create, validate_pod_update
from egpu.core.demand.templates import own_claims, with_named_claims
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.requests import pod_request
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import is_object_name
from egpu_base.errors import InvalidDemand
from support.objects import container, gpu_class, pod

TEMPLATE = names.CLAIM_TEMPLATE_PREFIX + "app"
CLAIM = names.CLAIM_PREFIXES[1] + "app"
SPEC: dict[str, Any] = {
    "elasticGPUClassName": "shared",
    "resources": {"requests": {names.GPU_CORE: 30, names.GPU_MEMORY: "4Gi"}},
}
CLASSES = {one.name: one for one in (gpu_class(), gpu_class("open", parameters={"shareable": "true"}))}


def templated(spec: Any = SPEC, *, key: str = TEMPLATE, name: str = "web", **more: str) -> Pod:
    text = spec if isinstance(spec, str) else json.dumps(spec)
    return pod(name, container("app"), annotations={key: text, **more})


def problems(one: Pod, *there: ElasticGPUClaim) -> list[str]:
    """What admission says, as the webhook asks."""
    named = with_named_claims(one, "token")
    claims = {claim.name: claim for claim in (*own_claims(named), *there)}
    return [str(each) for each in validate_pod_create(named, claims, CLASSES)]


def test_each_pod_names_a_claim_of_its_own_and_keeps_the_name() -> None:
    first, second = (with_named_claims(templated(), token) for token in ("a", "b"))
    assert first.annotations[CLAIM].startswith("web-app-")
    assert first.annotations[CLAIM] != second.annotations[CLAIM]
    assert with_named_claims(first, "c") == first


@pytest.mark.parametrize("name", ["web", "", "a.b-c", "n" * 253])
def test_the_name_is_one_of_an_object_and_fits_into_a_label(name: str) -> None:
    one = templated(name=name)
    generated = replace(one, metadata=replace(one.metadata, generate_name="web-7f9-"))
    for each in (one, generated):
        found = with_named_claims(each, "token").annotations[CLAIM]
        assert is_object_name(found)
        assert len(found) <= 63


def test_the_claim_is_the_pod_s_and_has_the_template_as_its_spec() -> None:
    (claim,) = own_claims(with_named_claims(templated(), "token"))
    (owner,) = claim.metadata.owner_references or []
    assert (owner.kind, owner.name, owner.uid) == ("Pod", "web", "uid-web")
    assert claim.spec.class_name == "shared"
    assert claim.spec.resources.requests == SPEC["resources"]["requests"]


def test_the_patch_names_the_claim_and_asks_for_it() -> None:
    one = templated()
    named = with_named_claims(one, "token")
    claims = {claim.name: claim for claim in own_claims(named)}
    patch = mutate_pod(one, claims, CLASSES, token="token")
    assert patch[0]["path"] == "/metadata/annotations/egpuc.elasticgpu.io~1app"
    assert patch[0]["value"] == named.annotations[CLAIM]
    demand = next(step["value"] for step in patch if step["path"].endswith("~1demand"))
    assert named.annotations[CLAIM] in demand


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (templated("{"), "is not the spec of an ElasticGPUClaim in JSON"),
        (templated("[]"), "is not the spec of an ElasticGPUClaim in JSON"),
        (templated("[" * 100_000), "is not the spec of an ElasticGPUClaim in JSON"),
        (templated({**SPEC, "clasName": "x"}), "'clasName' is not a field of a claim's spec; its fields are"),
        (
            templated(key=names.CLAIM_TEMPLATE_PREFIX + "none"),
            "the pod has no container 'none'",
        ),
    ],
)
def test_a_template_that_cannot_be_read_is_refused_by_its_annotation(one: Pod, said: str) -> None:
    with pytest.raises(InvalidDemand, match=said) as refused:
        with_named_claims(one, "token")
    assert refused.value.field.startswith("metadata.annotations[egpuc-template.elasticgpu.io/")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {**SPEC, "elasticGPUClassName": "none"},
            "ElasticGPUClass 'none' does not exist; existing classes",
        ),
        ({"elasticGPUClassName": "shared"}, "asks for no GPU"),
        ({**SPEC, "elasticGPUClassName": "open"}, "class open is shareable, but this claim serves one pod"),
    ],
)
def test_a_claim_that_would_be_refused_refuses_the_pod(spec: Any, said: str) -> None:
    (problem,) = problems(templated(spec))
    assert problem.startswith("metadata.annotations[egpuc-template.elasticgpu.io/app]: ")
    assert said in problem
    assert "web-app-" not in problem, "a random name would make each refusal another event"


def test_a_claim_that_exists_is_not_the_pod_s_own() -> None:
    named = with_named_claims(templated(), "token")
    (own,) = own_claims(named)
    there = replace(own, metadata=replace(own.metadata, uid="another"))
    (problem,) = problems(named, there)
    assert f"the claim {own.name} exists; remove its annotation" in problem
    assert problems(named) == []


def test_a_template_cannot_change() -> None:
    old = with_named_claims(templated(), "token")
    changed = {**old.annotations, TEMPLATE: "{}"}
    new = replace(old, metadata=replace(old.metadata, annotations=changed))
    assert [one.field for one in validate_pod_update(old, new)] == [f"metadata.annotations[{TEMPLATE}]"]


def test_a_pod_waits_for_its_claim_to_be_made() -> None:
    request = pod_request(with_named_claims(templated(), "token"), SchedulerCache())
    assert request.waiting.endswith(", which is being made")
