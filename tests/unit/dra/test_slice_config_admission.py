"""The webhook and configuration for our DRA driver, in claims, templates and classes."""

from typing import Any

import msgspec
import pytest

from egpu.api import names
from egpu.api.admission import AdmissionRequest, AdmissionResponse, GroupVersionResource
from egpu.apps.webhook.admission import Admission
from support.fake_api import FakeAPI

KINDS = ("resourceclaims", "resourceclaimtemplates", "deviceclasses")


def an_object(plural: str, parameters: dict[str, Any], driver: str = names.DRIVER) -> dict[str, Any]:
    config = [{"opaque": {"driver": driver, "parameters": parameters}}]
    spec: dict[str, Any] = {"config": config} if plural == "deviceclasses" else {"devices": {"config": config}}
    return {"metadata": {"name": "a"}, "spec": {"spec": spec} if plural == "resourceclaimtemplates" else spec}


async def answer(
    plural: str, new: dict[str, Any], *, operation: str = "CREATE", old: dict[str, Any] | None = None
) -> AdmissionResponse:
    asked = AdmissionRequest(
        uid="u",
        resource=GroupVersionResource(group="resource.k8s.io", version="v1", resource=plural),
        operation=operation,
        object=msgspec.Raw(msgspec.json.encode(new)),
        old_object=msgspec.Raw(msgspec.json.encode(old)),
    )
    return await Admission(FakeAPI().client()).validate(asked)


def config(**fields: str) -> dict[str, str]:
    return {"apiVersion": names.API_VERSION, "kind": "SliceConfig", **fields}


@pytest.mark.parametrize("plural", KINDS)
async def test_valid_configuration_and_that_of_others_passes(plural: str) -> None:
    assert (await answer(plural, an_object(plural, config(computeMode="share")))).allowed
    assert (await answer(plural, an_object(plural, {"any": "thing"}, driver="gpu.nvidia.com"))).allowed


@pytest.mark.parametrize("plural", KINDS)
@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (config(computMode="cap"), "computMode"),
        (config(computeMode="fast"), "computeMode"),
        (config(memoryOversubscription="0.5"), "memoryOversubscription"),
        (config(technology="elasticgpu.io/mps"), "elasticgpu.io/mps cannot serve ResourceClaims yet"),
        (config(technology="magic"), "magic"),
        ({"kind": "Other"}, "kind"),
    ],
)
async def test_wrong_configuration_is_refused_by_its_field(plural: str, parameters: dict[str, str], words: str) -> None:
    found = await answer(plural, an_object(plural, parameters))
    assert not found.allowed
    assert found.status is not None
    assert "config[0].opaque.parameters" in found.status.message
    assert words in found.status.message


async def test_an_older_object_can_still_be_changed_and_deleted() -> None:
    wrong = an_object("deviceclasses", config(computeMode="fast"))
    assert (await answer("deviceclasses", wrong, operation="UPDATE", old=wrong)).allowed
    right = an_object("deviceclasses", config())
    assert not (await answer("deviceclasses", wrong, operation="UPDATE", old=right)).allowed
    claim = an_object("resourceclaims", config(computeMode="fast"))
    assert (await answer("resourceclaims", claim, operation="UPDATE", old=claim)).allowed
