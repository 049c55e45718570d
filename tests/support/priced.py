"""ResourceClaims on nodes whose cards the extender gives out, in a pretend API server."""

import copy
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from egpu.api import names
from egpu.api.objects import ElasticGPUClass
from egpu.core.dra.classes import device_class
from egpu.core.dra.devices import CORES, MEMORY
from egpu_base.api.objects import ObjectMeta
from egpu_base.api.quantities import MIB_BYTES, parse_quantity
from support.fake_api import FakeAPI, Json
from support.waiting import until

CLASS: Final = "slice"
WHOLE: Final = "whole"
CARD_MIB: Final = 16384


def a_card(node: str, index: int, *, allocator: str = names.PRICED, memory_mib: int = CARD_MIB) -> Json:
    physical = {
        "uuid": f"GPU-{node}-{index}", "index": index, "minor": index, "memoryMiB": memory_mib, "model": "T4",
        "allocator": allocator,
    }  # fmt: skip
    spec = {"nodeName": node, "physicalGPU": physical}
    return {"kind": "ElasticGPU", "metadata": {"name": f"{node}-{index}"}, "spec": spec}


def a_node(name: str, *, cpu: int = 64) -> Json:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    there = {"cpu": str(cpu), "memory": "256Gi", "pods": "110"}
    return {"kind": "Node", "metadata": {"name": name}, "status": {**ready, "allocatable": there, "capacity": there}}


def put_classes(api: FakeAPI) -> None:
    for name, provisioner in ((CLASS, names.VCUDA), (WHOLE, names.PHYSICAL)):
        put_class(api, name, provisioner)


def put_class(api: FakeAPI, name: str, provisioner: str, **parameters: str) -> None:
    """Create a class, and the DeviceClass that the controller makes of it."""
    meta = ObjectMeta(name=name, uid=f"uid-{name}")
    klass = ElasticGPUClass(metadata=meta, provisioner=provisioner, parameters=parameters)
    api.put("elasticgpuclasses", msgspec.to_builtins(klass))
    api.put("deviceclasses", msgspec.to_builtins(device_class(klass)))


def cluster(nodes: int = 1, cards: int = 1, *, allocator: str = names.PRICED) -> FakeAPI:
    api = FakeAPI()
    put_classes(api)
    for number in range(nodes):
        api.put("nodes", a_node(f"n{number}"))
        for index in range(cards):
            api.put("elasticgpus", a_card(f"n{number}", index, allocator=allocator))
    return api


def a_claim(name: str, *, cores: int = 0, mib: int = 0, klass: str = CLASS, **exactly: Any) -> Json:
    amounts = ({CORES: str(cores)} if cores else {}) | ({MEMORY: f"{mib}Mi"} if mib else {})
    wanted = {"deviceClassName": klass, **({"capacity": {"requests": amounts}} if amounts else {}), **exactly}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": wanted}]}}
    return {"kind": "ResourceClaim", "metadata": {"name": name, "namespace": "ns"}, "spec": spec}


def selecting(*expressions: str) -> list[Json]:
    return [{"cel": {"expression": one}} for one in expressions]


def a_pod(name: str, *claims: str, cpu: int = 0, **spec: Any) -> Json:
    asked = {"requests": {"cpu": str(cpu)}} if cpu else {}
    container = {"name": "app", "resources": {**asked, "claims": [{"name": one} for one in claims]}}
    listed = [{"name": one, "resourceClaimName": one} for one in claims]
    spec = {"containers": [container], "resourceClaims": listed, **spec}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "ns"}, "spec": spec, "status": {"phase": "Pending"}}


def allocation(api: FakeAPI, claim: str) -> Json | None:
    return (api.get("resourceclaims", claim, "ns").get("status") or {}).get("allocation")


def places(api: FakeAPI, claim: str) -> list[tuple[str, str]]:
    """The node and device of each result."""
    found = allocation(api, claim)
    return [] if found is None else [(one["pool"], one["device"]) for one in found["devices"]["results"]]


def given_out(api: FakeAPI) -> dict[str, tuple[int, int]]:
    """Percent and MiB of each device that ResourceClaims have, by what the API server holds."""
    total: dict[str, tuple[int, int]] = {}
    for obj in api.all("resourceclaims"):
        allocated: Mapping[str, Any] = (obj.get("status") or {}).get("allocation") or {}
        for one in (allocated.get("devices") or {}).get("results") or ():
            core, mib = total.get(one["device"], (0, 0))
            amounts = one["consumedCapacity"]
            mib += int(parse_quantity(amounts[MEMORY]) / MIB_BYTES)
            total[one["device"]] = core + int(parse_quantity(amounts[CORES])), mib
    return total


def free(api: FakeAPI, pod: str) -> None:
    """Delete a pod, and free its claims as Kubernetes' controller does."""
    uid = api.get("pods", pod, "ns")["metadata"]["uid"]
    api.remove("pods", pod, "ns")
    free_claims_of(api, uid)


def free_claims_of(api: FakeAPI, uid: str) -> None:
    for obj in api.all("resourceclaims"):
        status = obj.get("status") or {}
        left = [one for one in status.get("reservedFor") or () if one["uid"] != uid]
        if left != (status.get("reservedFor") or []):
            kept = {"reservedFor": left, "allocation": status["allocation"]} if left else {}
            set_status(api, obj["metadata"]["name"], kept)


def set_status(api: FakeAPI, claim: str, status: Json) -> None:
    """Write a claim's status as another component does."""
    api.put("resourceclaims", {**copy.deepcopy(api.get("resourceclaims", claim, "ns")), "status": status})


def put(api: FakeAPI, pod: Json, *claims: Json) -> Json:
    """Create claims, and a pod that uses them."""
    for one in claims:
        api.put("resourceclaims", one)
    return api.put("pods", pod)


def warnings(api: FakeAPI, reason: str) -> list[str]:
    return [one["message"] for one in api.all("events") if one["reason"] == reason]


async def allocated(api: FakeAPI, *claims: str) -> None:
    await until(lambda: all(allocation(api, one) for one in claims))
