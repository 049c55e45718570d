"""DeviceClasses of ElasticGPUClasses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest

from egpu.api import names
from egpu.api.objects import ElasticGPUClass
from egpu.apps.controller import Controller, ControllerConfig
from egpu.core.dra.classes import device_class
from egpu.core.dra.configuration import configuration
from egpu_base.api.devices import AllocationConfiguration, OpaqueConfiguration
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import InvalidInput, NotSupported
from support.fake_api import FakeAPI, status
from support.waiting import until


def a_class(provisioner: str, **parameters: str) -> ElasticGPUClass:
    return ElasticGPUClass(metadata=ObjectMeta(name="k", uid="uid-k"), provisioner=provisioner, parameters=parameters)


def test_a_class_selects_devices_of_its_technology_and_configures_them() -> None:
    made = device_class(a_class("vcuda.provisioner.elasticgpu.io", computeMode="share", memoryOversubscription="1.5"))
    (selector,) = made.spec.selectors or []
    assert selector.cel is not None
    assert selector.cel.expression == (
        'device.driver == "gpu.elasticgpu.io" && device.attributes["gpu.elasticgpu.io"].vcuda'
    )
    (config,) = made.spec.config or []
    assert config.opaque is not None
    found = configuration([AllocationConfiguration(source="FromClass", opaque=config.opaque)], "gpu")
    assert (found.technology, found.compute_mode, found.memory_limit_percent) == (names.VCUDA, "share", 150)
    (owner,) = made.metadata.owner_references or []
    assert (made.name, owner.kind, owner.uid) == ("k", "ElasticGPUClass", "uid-k")


def test_a_class_that_says_nothing_leaves_no_idle_compute_to_its_claims() -> None:
    (config,) = device_class(a_class(names.VCUDA)).spec.config or []
    assert config.opaque is not None
    assert (config.opaque.parameters or {})["computeMode"] == "cap"


@pytest.mark.parametrize("provisioner", [names.VCUDA, names.PHYSICAL])
def test_a_class_that_says_nothing_lets_no_claim_use_more_memory_than_its_own(provisioner: str) -> None:
    """The memory beyond is the host's. A claim of elasticgpu.io cannot ask for it either."""
    (config,) = device_class(a_class(provisioner)).spec.config or []
    assert config.opaque is not None
    of_class = AllocationConfiguration(source="FromClass", opaque=config.opaque)
    assert configuration([of_class], "gpu").memory_limit_percent == 0
    parameters = {"apiVersion": names.API_VERSION, "kind": "SliceConfig", "memoryOversubscription": "10"}
    own = AllocationConfiguration(opaque=OpaqueConfiguration(driver=names.DRIVER, parameters=parameters))
    with pytest.raises(InvalidInput, match="memoryOversubscription is 10, but 1 is set already"):
        configuration([of_class, own], "gpu")


@pytest.mark.parametrize(
    ("klass", "words"),
    [
        (a_class(names.MPS), "elasticgpu.io/mps cannot serve ResourceClaims yet"),
        (a_class(names.VCUDA, cardSelector="model in (A100)"), "cannot follow its parameter cardSelector yet"),
        # Only the ledger of claims of elasticgpu.io adds up limits.
        (a_class(names.VCUDA, maxCoreLimits="300"), "cannot follow its parameter maxCoreLimits yet"),
    ],
)
def test_terms_that_claims_cannot_follow_make_no_class(klass: ElasticGPUClass, words: str) -> None:
    with pytest.raises(NotSupported, match=words):
        device_class(klass)


@pytest.fixture
async def api() -> AsyncIterator[FakeAPI]:
    found = FakeAPI()
    task = asyncio.create_task(Controller(ControllerConfig(), found.client()).lead())
    yield found
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def put(api: FakeAPI, name: str, provisioner: str = names.VCUDA) -> None:
    meta = {"name": name, "uid": f"uid-{name}"}
    api.put("elasticgpuclasses", {"kind": "ElasticGPUClass", "metadata": meta, "provisioner": provisioner})


async def test_the_controller_makes_them_and_leaves_those_of_others(api: FakeAPI) -> None:
    api.put("deviceclasses", {"kind": "DeviceClass", "metadata": {"name": "taken"}, "spec": {}})
    for name, provisioner in (("mps", names.MPS), ("taken", names.VCUDA), ("whole", names.PHYSICAL)):
        put(api, name, provisioner)
    await until(lambda: ("deviceclasses", "", "whole") in api.objects)
    await until(lambda: any(one["reason"] == "DeviceClassNotMade" for one in api.all("events")))
    assert {one["metadata"]["name"] for one in api.all("deviceclasses")} == {"taken", "whole"}
    assert api.get("deviceclasses", "taken")["spec"] == {}


async def test_an_older_versions_class_is_brought_up_to_date(api: FakeAPI) -> None:
    owners = [{"apiVersion": "v1", "kind": "ElasticGPUClass", "name": "k", "uid": "uid-k"}]
    api.put("deviceclasses", {"kind": "DeviceClass", "metadata": {"name": "k", "ownerReferences": owners}, "spec": {}})
    put(api, "k")
    await until(lambda: bool(api.get("deviceclasses", "k")["spec"].get("selectors")))


async def test_a_cluster_without_that_api_is_left_alone(api: FakeAPI) -> None:
    def missing(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        return status(404, "NotFound") if "deviceclasses" in request.url.path else None

    api.fault = missing
    put(api, "k")
    await until(lambda: ("POST", "/apis/resource.k8s.io/v1/deviceclasses") in api.log)
    assert not api.all("deviceclasses")
