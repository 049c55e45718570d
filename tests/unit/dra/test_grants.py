"""An allocated claim as slices of a node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from egpu.api import names
from egpu.core.dra.devices import device_name
from egpu.core.dra.grants import NodeCard, containers_with, grants
from egpu_base.api.devices import ResourceClaim
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import InvalidInput, NotSupported, TerminalError

UUID = "GPU-0000aaaa-0000-4000-8000-000000000000"
DEVICE = device_name(UUID)
CARDS = {DEVICE: NodeCard(UUID, 0, 5, 16384, "m")}
CONFIG = {"apiVersion": names.API_VERSION, "kind": "SliceConfig"}


def result(request: str = "gpu", **changes: Any) -> dict[str, Any]:
    capacity = {"cores": "30", "memory": "4Gi"}
    found = {"request": request, "driver": names.DRIVER, "pool": "node", "device": DEVICE, "shareID": "s"}
    return {**found, "consumedCapacity": capacity, **changes}


def opaque(source: str = "FromClass", requests: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    parameters = {**CONFIG, **fields}
    return {"source": source, "requests": list(requests), "opaque": {"driver": names.DRIVER, "parameters": parameters}}


def claim(*results: dict[str, Any], config: tuple[dict[str, Any], ...] = ()) -> ResourceClaim:
    allocation = {"devices": {"results": list(results), "config": list(config)}}
    plain = {
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default", "uid": "uid-c"},
        "status": {"allocation": allocation},
    }
    return msgspec.convert(plain, ResourceClaim)


def test_a_request_gets_the_amounts_that_its_claim_consumes() -> None:
    (grant,) = grants(claim(result()), "node", CARDS)
    assert (grant.request, grant.allocation.provisioner, grant.allocation.mode) == ("gpu", names.VCUDA, "shared")
    (share,) = grant.allocation.cards
    assert (share.uuid, share.minor, share.core, share.memory_mib) == (UUID, 5, 30, 4096)
    assert share.card_memory_mib == 16384


def test_without_amounts_it_is_the_whole_card_and_still_limited() -> None:
    (grant,) = grants(claim(result(consumedCapacity=None)), "node", CARDS)
    assert [(one.core, one.memory_mib) for one in grant.allocation.cards] == [(100, 16384)]
    assert grant.allocation.mode == "shared"


def test_devices_of_one_request_are_one_slice_and_requests_are_apart() -> None:
    capacity = {f"{names.DRIVER}/cores": 10, f"{names.DRIVER}/memory": 1 << 30}
    found = grants(claim(result("a"), result("a", consumedCapacity=capacity), result("b")), "node", CARDS)
    assert [(one.request, [(s.core, s.memory_mib) for s in one.allocation.cards]) for one in found] == [
        ("a", [(40, 5120)]),
        ("b", [(30, 4096)]),
    ]


def test_other_drivers_and_other_nodes_devices_are_not_ours() -> None:
    with pytest.raises(TerminalError, match="names no device"):
        grants(claim(result(driver="other.example"), result(pool="elsewhere")), "node", CARDS)
    with pytest.raises(TerminalError, match="not a card of this node"):
        grants(claim(result(device="gpu-gone")), "node", CARDS)
    with pytest.raises(NotSupported, match="adminAccess"):
        grants(claim(result(adminAccess=True)), "node", CARDS)


def test_a_class_decides_and_a_claim_fills_in() -> None:
    parts = (opaque("FromClaim", computeMode="share"), opaque(technology=names.VCUDA, memoryOversubscription="1.5"))
    (grant,) = grants(claim(result(), config=parts), "node", CARDS)
    assert (grant.allocation.core_limit, grant.allocation.memory_limit_percent) == (100, 150)
    parts = (opaque(computeMode="cap"), opaque("FromClaim", computeMode="share"))
    with pytest.raises(InvalidInput, match=r"by the claim: .*computeMode is share, but cap is set already"):
        grants(claim(result(), config=parts), "node", CARDS)


def test_a_class_or_a_claim_says_the_kind_of_work() -> None:
    for source in ("FromClass", "FromClaim"):
        (grant,) = grants(claim(result(), config=(opaque(source, work="latency"),)), "node", CARDS)
        assert grant.allocation.work == "latency"
    (grant,) = grants(claim(result()), "node", CARDS)
    assert grant.allocation.work == "batch"
    with pytest.raises(InvalidInput, match=r"work: .*physical gives out no turns"):
        grants(claim(result(), config=(opaque(work="latency", technology=names.PHYSICAL),)), "node", CARDS)


def test_configuration_of_another_request_or_driver_does_not_count() -> None:
    foreign = {"source": "FromClaim", "opaque": {"driver": "other.example", "parameters": {"x": 1}}}
    (grant,) = grants(
        claim(result("a/sub"), config=(foreign, opaque(requests=("b",), computeMode="share"))), "node", CARDS
    )
    assert grant.allocation.core_limit == 0
    (grant,) = grants(claim(result("a/sub"), config=(opaque(requests=("a",), computeMode="share"),)), "node", CARDS)
    assert grant.allocation.core_limit == 100


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cores": 3}, "unknown field `cores`; a SliceConfig of elasticgpu.io/v1alpha1 has the fields technology"),
        ({"computeMode": "fast"}, "Invalid enum value 'fast'"),
        ({"apiVersion": ""}, "it is no apiVersion, SliceConfig; write apiVersion"),
        ({"technology": "elasticgpu.io/none"}, "does not exist; choose one of"),
        (
            {"technology": names.MPS},
            "elasticgpu.io/mps cannot serve ResourceClaims yet; use one of elasticgpu.io/vcuda",
        ),
        ({"memoryOversubscription": "99"}, "is not a factor from 1 to 10"),
        ({"technology": names.PHYSICAL}, "whole cards only, and its claim asks for 30 % and 4096 MiB"),
    ],
)
def test_wrong_configuration_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidInput, NotSupported), match=words):
        grants(claim(result(), config=(opaque(**fields),)), "node", CARDS)


def test_a_whole_card_of_the_physical_technology_is_exclusive() -> None:
    whole = claim(result(consumedCapacity=None), config=(opaque(technology="physical.provisioner.elasticgpu.io"),))
    (grant,) = grants(whole, "node", CARDS)
    assert (grant.allocation.provisioner, grant.allocation.mode) == (names.PHYSICAL, "exclusive")


def test_a_request_reaches_the_containers_that_name_it() -> None:
    containers = [
        {"name": "all", "resources": {"claims": [{"name": "own"}]}},
        {"name": "one", "resources": {"claims": [{"name": "own", "request": "a"}]}},
        {"name": "other", "resources": {"claims": [{"name": "own", "request": "b"}, {"name": "else"}]}},
        {"name": "none"},
    ]
    plain = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {
            "containers": containers,
            "resourceClaims": [
                {"name": "own", "resourceClaimTemplateName": "t"},
                {"name": "else", "resourceClaimName": "d"},
            ],
        },
        "status": {"resourceClaimStatuses": [{"name": "own", "resourceClaimName": "p-own-x1"}]},
    }
    pod = msgspec.convert(plain, Pod)
    assert containers_with(pod, "p-own-x1", "a/sub") == ["all", "one"]
    assert containers_with(pod, "d", "a") == ["other"]
