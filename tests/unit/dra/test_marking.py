"""The webhook marks new claims of our classes, and leaves those of others alone."""

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from egpu.api import names
from egpu.api.admission import AdmissionRequest, AdmissionResponse, GroupVersionResource
from egpu.api.objects import ElasticGPUClass
from egpu.apps.controller.webhooks import asks_for_a_class
from egpu.apps.webhook.admission import Admission
from egpu.core.dra.marking import AT_CREATION, mark_new, may_be_allocated
from egpu_base.api.devices import ResourceClaim
from egpu_base.api.objects import ObjectMeta
from egpu_base.cel.grammar import compiled
from egpu_sim.cluster.apiserver.patching.json_patch import json_patch
from support.priced import CLASS, WHOLE, a_claim, cluster

CLASSES = {
    name: ElasticGPUClass(metadata=ObjectMeta(name=name), provisioner=provisioner)
    for name, provisioner in ((CLASS, names.VCUDA), (WHOLE, names.PHYSICAL), ("mps", names.MPS))
}


def marked(claim: dict[str, Any]) -> dict[str, Any]:
    """Return the claim as the API server stores it."""
    return json_patch(claim, mark_new(msgspec.convert(claim, ResourceClaim), CLASSES.get))


@pytest.mark.parametrize("klass", [CLASS, WHOLE])
@pytest.mark.parametrize(
    "metadata", [{}, {"annotations": {}, "finalizers": []}, {"annotations": {"a": "b"}, "finalizers": ["other"]}]
)
def test_a_claim_of_our_classes_can_be_allocated_at_once(klass: str, metadata: dict[str, Any]) -> None:
    claim = a_claim("c", klass=klass)
    claim["metadata"] |= metadata
    assert not may_be_allocated(msgspec.convert(claim, ResourceClaim))
    found = marked(claim)
    assert may_be_allocated(msgspec.convert(found, ResourceClaim))
    assert found["metadata"]["annotations"] == {**metadata.get("annotations", {}), names.FENCE: AT_CREATION}
    assert found["metadata"]["finalizers"] == [*metadata.get("finalizers", []), names.DELETE_PROTECTION]
    assert found["spec"] == claim["spec"]
    assert marked(found) == found  # a second time changes nothing


@pytest.mark.parametrize("klass", ["mps", "of-another-driver"])
def test_a_claim_that_an_extender_never_serves_stays_as_it_is(klass: str) -> None:
    claim = a_claim("c", klass=klass)
    assert marked(claim) == claim


def test_a_claim_with_one_request_for_us_is_marked() -> None:
    claim, other = a_claim("c"), a_claim("c", klass="of-another-driver")
    claim["spec"]["devices"]["requests"] += [{**other["spec"]["devices"]["requests"][0], "name": "nic"}]
    assert names.FENCE in marked(claim)["metadata"]["annotations"]


async def answer(claim: Any, *, operation: str = "CREATE", sub_resource: str = "") -> AdmissionResponse:
    admission = Admission(cluster().client())
    running = asyncio.create_task(admission.caches.run())
    try:
        await admission.caches.synced()
        return await admission.mutate(
            AdmissionRequest(
                uid="u",
                resource=GroupVersionResource(group="resource.k8s.io", version="v1", resource="resourceclaims"),
                sub_resource=sub_resource,
                operation=operation,
                object=msgspec.Raw(msgspec.json.encode(claim)),
            )
        )
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_the_webhook_marks_claims_at_their_creation_alone() -> None:
    found = await answer(a_claim("c"))
    assert found.allowed
    assert json_patch(a_claim("c"), msgspec.json.decode(found.patch or b"[]")) == marked(a_claim("c"))
    for asked in (answer(a_claim("c"), operation="UPDATE"), answer(a_claim("c"), sub_resource="status")):
        found = await asked
        assert found.allowed
        assert found.patch is None


async def test_a_claim_that_cannot_be_read_passes() -> None:
    found = await answer({"metadata": {"name": "c"}, "spec": {"devices": {"requests": "later"}}})
    assert found.allowed
    assert found.patch is None


@pytest.mark.parametrize(
    ("devices", "sent"),
    [
        (a_claim("c")["spec"]["devices"], True),
        ({"requests": [{"name": "a", "firstAvailable": [{"name": "b", "deviceClassName": CLASS}]}]}, False),
        ({}, False),
    ],
)
def test_the_api_server_sends_claims_that_an_extender_might_serve(devices: dict[str, Any], sent: bool) -> None:
    assert compiled(asks_for_a_class())({"object": {"spec": {"devices": devices}}}) is sent
