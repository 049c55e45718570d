"""What our components keep of ResourceClaims is limited, whatever a tenant writes into them."""

import gc
import tracemalloc
from typing import Any

import msgspec
import pytest

from egpu.api import names
from egpu.core.dra.configuration import configuration
from egpu.core.dra.grants import ours
from egpu.core.dra.kept import MOST_BYTES, TOO_LARGE, kept_claim
from egpu.core.dra.marking import is_marked
from egpu_base.api.devices import ExactDeviceRequest, ResourceClaim
from egpu_base.errors import InvalidInput
from support.extenders import extender
from support.priced import a_claim, a_pod, allocated, cluster, put, warnings
from support.waiting import until

MANY: dict[str, Any] = {f"k{number}": number for number in range(900)}
"""A configuration of 10 KiB, which is the most that an API server takes."""


def opaque(driver: str, **parameters: Any) -> dict[str, Any]:
    return {"opaque": {"driver": driver, "parameters": parameters}}


def stuffed(name: str) -> dict[str, Any]:
    """A claim with as much as an API server takes."""
    found = a_claim(name, cores=1, mib=1)
    found["spec"]["devices"]["config"] = [opaque("other.example", **MANY) for _ in range(32)]
    found["status"] = {"devices": [{"driver": "x", "pool": "y", "device": str(at), "data": MANY} for at in range(32)]}
    found["metadata"]["annotations"] = {"stuffing": "x" * 200_000}
    found["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": "1" * 10_000}}] * 32
    return found


def read(obj: dict[str, Any]) -> ResourceClaim:
    return kept_claim(msgspec.convert(msgspec.json.decode(msgspec.json.encode(obj)), ResourceClaim))


def test_a_stuffed_claim_takes_little_memory() -> None:
    gc.collect()
    tracemalloc.start()
    try:
        kept = [read(stuffed(f"c{number}")) for number in range(10)]
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / len(kept) < MOST_BYTES, "it takes 5 MiB as objects"
    assert all(exactly(one).selectors for one in kept), "enough of them to be refused as too long"


def exactly(claim: ResourceClaim) -> ExactDeviceRequest:
    """The only request of a claim."""
    (request,) = [one.exactly for one in claim.spec.devices.requests or ()]
    assert request is not None
    return request


@pytest.mark.parametrize(
    "stuff",
    [
        lambda claim: claim["metadata"].update(finalizers=[f"a.example/{number}" for number in range(5000)]),
        lambda claim: claim["metadata"].update(annotations={"elasticgpu.io/x": "x" * 100_000}),
        lambda claim: claim["spec"]["devices"]["requests"][0]["exactly"].update(
            capacity={"requests": {f"a.example/{number}": "1" for number in range(5000)}}
        ),
    ],
    ids=["finalizers", "annotations", "capacities"],
)
async def test_a_claim_that_stays_large_is_not_served_and_says_why(stuff: Any) -> None:
    api, large = cluster(), a_claim("large", cores=1, mib=1)
    stuff(large)
    put(api, a_pod("p", "large"), large)
    put(api, a_pod("q", "small"), a_claim("small", cores=1, mib=1))
    others = a_claim("others", klass="nic")
    stuff(others)
    put(api, a_pod("r", "others"), others)
    async with extender(api) as one:
        await allocated(api, "small")
        await until(lambda: warnings(api, "ClaimNotServed"))
        found = one.view.device_claims.get("large", "ns")
        assert found is not None
        assert len(msgspec.msgpack.encode(found)) < MOST_BYTES
    (said,) = warnings(api, "ClaimNotServed")
    assert "claim ns/large: its finalizers, requests or configuration have more than 32 KiB; shorten them" in said


def test_a_claim_that_stays_large_holds_what_it_has() -> None:
    large = a_claim("c", cores=1, mib=1)
    large["metadata"]["finalizers"] = [f"a.example/{number}" for number in range(5000)]
    result = {"request": "gpu", "driver": names.DRIVER, "pool": "n0", "device": "d"}
    config = [{"source": "FromClass", **opaque(names.DRIVER, technology=names.VCUDA)}, opaque("x.example", a="b")]
    large["status"] = {"allocation": {"devices": {"results": [result], "config": config}}}
    kept = read(large)
    assert [one.device for one in ours(kept, "n0")] == ["d"]
    assert kept.status.allocation is not None
    assert len(kept.status.allocation.devices.config or ()) == 1
    assert TOO_LARGE in kept.annotations


def test_what_decides_is_kept() -> None:
    claim = a_claim("c", cores=1, mib=1, tolerations=[{"operator": "Exists"}])
    claim["metadata"] |= {"annotations": {names.FENCE: "x", "a": "b"}, "finalizers": ["f"]}
    claim["spec"]["devices"] |= {"constraints": [{"matchAttribute": "a/b"}], "config": [opaque(names.DRIVER, a="b")]}
    kept = read(claim)
    assert is_marked(kept)
    assert TOO_LARGE not in kept.annotations
    assert kept.metadata.finalizers == ["f"]
    assert kept.spec.devices.constraints
    assert exactly(kept).tolerations
    assert kept.spec.devices.config == msgspec.convert(claim, ResourceClaim).spec.devices.config


def test_a_long_configuration_for_our_driver_is_refused_by_name() -> None:
    result = {"request": "gpu", "driver": names.DRIVER, "pool": "n0", "device": "d"}
    claim = a_claim("c")
    claim["status"] = {"allocation": {"devices": {"results": [result], "config": [opaque(names.DRIVER, **MANY)]}}}
    allocation = read(claim).status.allocation
    assert allocation is not None
    with pytest.raises(InvalidInput, match=r"unknown field `\(more than 1024 bytes\)`"):
        configuration(allocation.devices.config or (), "gpu")
