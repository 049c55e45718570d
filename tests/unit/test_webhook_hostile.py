"""A pod with thousands of annotations costs the API server no question for each of them."""

import msgspec
import pytest

from egpu.api import names
from egpu.api.admission import AdmissionRequest, GroupVersionKind, GroupVersionResource
from egpu.api.objects import ElasticGPUClaim, ElasticGPUClaimSpec
from egpu.apps.webhook.admission import Admission
from egpu_base.api.kubernetes import Pod
from support.fake_api import FakeAPI
from support.objects import container, pod

CLAIM = names.CLAIM_PREFIXES[0]


def review(asking: Pod) -> AdmissionRequest:
    return AdmissionRequest(
        uid="u",
        kind=GroupVersionKind(group="", version="v1", kind="Pod"),
        resource=GroupVersionResource(group="", version="v1", resource="pods"),
        namespace="ns",
        operation="CREATE",
        object=msgspec.Raw(msgspec.json.encode(asking)),
    )


async def test_a_pod_with_too_many_containers_is_refused_before_its_claims_are_looked_up() -> None:
    api = FakeAPI()
    some = [container(f"c{at}") for at in range(names.MAX_CONTAINERS + 1)]
    named = {f"{CLAIM}c{at}": f"claim-{at}" for at in range(200)}
    answer = await Admission(api.client()).mutate(review(pod("p", *some, annotations=named)))
    assert "the most is 512" in (answer.status.message if answer.status else "")
    assert [path for _, path in api.log if "elasticgpuclaims" in path] == []


@pytest.mark.parametrize("name", ["small#x", "?limit=1", "../pods", "a/b", "UPPER", "x" * 254])
async def test_what_is_no_object_s_name_is_looked_up_nowhere(name: str) -> None:
    api = FakeAPI()
    asking = ElasticGPUClaim(spec=ElasticGPUClaimSpec(egpu_class_name=name))
    assert await Admission(api.client())._known(ElasticGPUClaim, {name}, lambda _: None, namespace="ns") == {}
    assert name not in await Admission(api.client())._classes_of({"c": asking})
    assert not [path for _, path in api.log if name in path]


async def test_claims_that_a_pod_uses_are_looked_up() -> None:
    api = FakeAPI()
    answer = await Admission(api.client()).mutate(
        review(pod("p", container("app"), annotations={f"{CLAIM}app": "claim"}))
    )
    assert "has no ElasticGPUClaim 'claim'" in (answer.status.message if answer.status else "")
    assert [path.rpartition("/")[2] for _, path in api.log if "elasticgpuclaims" in path] == ["claim"]
