"""Resizes whose writes fail, get lost or come too late: the ledger never counts less than may be allowed."""

import json

import httpx2
from test_extender_binding import card, cluster, extender

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, PodAllocation, decode_allocation, encode
from egpu.apps.extender import Extender
from support.fake_api import FakeAPI, Json, status
from support.waiting import until

SHARE = CardShare(uuid="GPU-n0-00000000", index=0, minor=0, core=30, memory_mib=1024)


def running(name: str, core: int = 30, annotations: dict[str, str] | None = None) -> Json:
    share = ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=(_sized(core),))
    allocation = encode(PodAllocation(node="n0", containers={"app": share}))
    demand = '{"version":1,"containers":{}}'
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "annotations": {names.DEMAND: demand, names.ALLOCATION: allocation, **(annotations or {})},
        },
        "spec": {"nodeName": "n0", "containers": [{"name": "app"}]},
        "status": {"phase": "Running"},
    }


def _sized(core: int) -> CardShare:
    return CardShare(uuid=SHARE.uuid, index=0, minor=0, core=core, memory_mib=1024)


def asks(api: FakeAPI, name: str, size: str) -> None:
    pod = json.loads(json.dumps(api.get("pods", name, "ns")))
    pod["metadata"]["annotations"][f"{names.RESIZE_PREFIX}app"] = size
    api.put("pods", pod)


def given(api: FakeAPI, name: str) -> ContainerAllocation:
    return decode_allocation(api.get("pods", name, "ns")["metadata"]["annotations"][names.ALLOCATION]).containers["app"]


def said(api: FakeAPI, uid: str, revision: int, over_mib: int = 0) -> None:
    """The node's word on the pod's slice."""
    line = {"pod": uid, "container": "app", "revision": revision, "overMiB": over_mib}
    api.put("elasticgpus", {**card("n0", 0), "metadata": {"name": "n0-0"}, "status": {"inForce": [line]}})


def free(one: Extender) -> int:
    ledger = one.view.cache.ledger
    return int(ledger.core_free[0, 0])


def writes_size(request: httpx2.Request) -> bool:
    return request.method == "PATCH" and names.ALLOCATION.encode() in request.content


async def test_growing_is_counted_first_and_a_refused_write_is_taken_back() -> None:
    api, seen = cluster(), []

    def fault(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if writes_size(request) and not seen:
            seen.append(free(one))
            return status(422, "Invalid", "no")
        return None

    api.put("pods", running("p"))
    async with extender(api) as one:
        api.fault = fault
        asks(api, "p", "core=50")
        await until(lambda: seen)
        assert seen == [50], "counted before it was written"
        await until(lambda: free(one) == 70)
        assert given(api, "p").revision == 0


async def test_a_write_that_was_done_and_got_no_answer_counts() -> None:
    api, lost = cluster(), []

    def fault(server: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if writes_size(request) and not lost:
            lost.append(server.serve(request))
            raise httpx2.ReadError("cut")
        return None

    api.put("pods", running("p"))
    async with extender(api) as one:
        api.fault = fault
        asks(api, "p", "core=50")
        await until(lambda: given(api, "p").revision == 1 and free(one) == 50)


async def test_shrinking_is_given_to_others_only_when_the_node_says_so() -> None:
    api = cluster()
    uid = api.put("pods", running("p", 60))["metadata"]["uid"]
    api.put("pods", running("q", 30))
    async with extender(api) as one:
        asks(api, "p", "core=20")
        await until(lambda: given(api, "p").revision == 1)
        asks(api, "q", "core=70")
        await until(lambda: f"{names.RESIZED_PREFIX}app" in api.get("pods", "q", "ns")["metadata"]["annotations"])
        assert free(one) == 10
        said(api, uid, 1, over_mib=7)
        said(api, uid, 0)
        await until(lambda: [line.revision for gpu in one.view.gpus for line in gpu.status.in_force] == [0])
        assert given(api, "p").held
        said(api, uid, 1)
        await until(lambda: not given(api, "p").held)
        await until(lambda: given(api, "q").cards[0].core == 70)


async def test_a_container_with_a_long_name_is_resized_and_answered() -> None:
    api, name = cluster(), "a" * 63
    pod = json.loads(json.dumps(running("p", 20)).replace('"app"', f'"{name}"').replace('\\"app\\"', f'\\"{name}\\"'))
    api.put("pods", pod)
    async with extender(api):
        pod["metadata"]["annotations"][f"{names.RESIZE_PREFIXES[1]}{name}"] = "core=50"
        api.put("pods", pod)
        await until(lambda: f"resized.elasticgpu.io/{name}" in api.get("pods", "p", "ns")["metadata"]["annotations"])


async def test_a_successor_counts_what_is_held_and_goes_on() -> None:
    api = cluster()
    uid = api.put("pods", running("p", 60))["metadata"]["uid"]
    async with extender(api):
        asks(api, "p", "core=20")
        await until(lambda: given(api, "p").revision == 1)
    async with extender(api) as other:
        assert free(other) == 40
        said(api, uid, 1)
        await until(lambda: free(other) == 80)


async def test_a_pod_follows_its_claim_and_counts_nothing_beside_it() -> None:
    api = cluster()
    api.put("elasticgpuclasses", {"kind": "ElasticGPUClass", "metadata": {"name": "k"}, "provisioner": names.VCUDA})
    share = ContainerAllocation(provisioner=names.VCUDA, mode="shared", claim="c", cards=(_sized(30),))
    allocation = PodAllocation(node="n0", containers={"app": share})
    held = {"node": "n0", "container": json.loads(encode(allocation))["containers"]["app"]}
    spec = {"elasticGPUClassName": "k", "resources": {"requests": {names.GPU_CORE: 30, names.GPU_MEMORY: 1024}}}
    metadata = {"name": "c", "namespace": "ns"}
    claim = {"kind": "ElasticGPUClaim", "metadata": metadata, "spec": spec, "status": {"allocation": held}}
    api.put("elasticgpuclaims", claim)
    pod = running("p", annotations={f"{names.CLAIM_PREFIXES[0]}app": "c"})
    pod["metadata"]["annotations"][names.ALLOCATION] = encode(allocation)
    uid = api.put("pods", pod)["metadata"]["uid"]
    async with extender(api) as one:
        assert free(one) == 70
        edited = json.loads(json.dumps(api.get("elasticgpuclaims", "c", "ns")))
        edited["spec"]["resources"]["requests"][names.GPU_CORE] = 10
        api.put("elasticgpuclaims", edited)
        await until(lambda: given(api, "p").cards[0].core == 10)
        assert free(one) == 70
        said(api, uid, 1)
        await until(lambda: free(one) == 90 and not given(api, "p").held)
        status_now = api.get("elasticgpuclaims", "c", "ns")["status"]
        await until(lambda: api.get("elasticgpuclaims", "c", "ns")["status"]["conditions"][0]["reason"] == "InForce")
        assert status_now["allocation"]["container"]["revision"] == 1
