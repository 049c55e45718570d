"""When a definition is served, from answers of Kubernetes 1.36's own API server."""

from typing import Any

from egpu.apps.install.objects import Objects
from egpu.apps.install.readiness import unestablished
from support.fake_api import FakeAPI

NAME = "elasticgpus.elasticgpu.io"
DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": NAME},
}
NEW = {"acceptedNames": {"kind": "", "plural": ""}, "conditions": None, "storedVersions": None}
"""The status in the answer to its creation."""
ACCEPTED = {"type": "NamesAccepted", "status": "True"}
NAMED = {**NEW, "conditions": [ACCEPTED]}
SERVED = {**NEW, "conditions": [ACCEPTED, {"type": "Established", "status": "True"}]}


async def test_a_definition_is_awaited_until_it_is_established() -> None:
    api = FakeAPI()
    objects = Objects(api.client())
    for status, left in (({}, 1), (NEW, 1), (NAMED, 1), (SERVED, 0)):
        api.put("customresourcedefinitions", {**DEFINITION, "metadata": {"name": NAME}, "status": status})
        assert len(await unestablished(objects, [DEFINITION])) == left, status
