"""Quotas for cards that Kubernetes does not count: claims that no pod counts, beside the pods of their namespace."""

import pytest
from test_extender_binding import args, claim, cluster, extender, given_out, gpu_class, pod, seen

from egpu.api import names
from egpu.apps.extender import Extender, claim_writer
from egpu_base.errors import Refused
from support.fake_api import FakeAPI, Json
from support.waiting import until

CORE = f"requests.{names.GPU_CORE}"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_writer, "RETRY_SECONDS", 0.05)


def namespace(*, hard: int, used: int = 0) -> FakeAPI:
    """A card, and a namespace with this quota."""
    api = cluster()
    api.put("elasticgpuclasses", gpu_class("now", "Immediate"))
    quota(api, hard=hard, used=used)
    return api


def quota(api: FakeAPI, *, hard: int, used: int = 0) -> None:
    status = {"hard": {CORE: str(hard)}, "used": {CORE: str(used)}}
    api.put("resourcequotas", {"kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "ns"}, "status": status})


def counted(name: str, core: int, uses: str = "") -> Json:
    """A pod that Kubernetes counted with so much compute."""
    made = pod(name, core, annotations={names.CLAIM_PREFIXES[0] + "app": uses} if uses else None)
    made["spec"]["containers"][0]["resources"]["limits"] = {names.GPU_CORE: str(core)}
    return made


async def bound(one: Extender, name: str) -> None:
    await until(lambda: (held := one.view.claims.get(name, "ns")) is not None and held.status.allocation)


async def test_a_claim_beyond_the_quota_gets_no_cards_until_there_is_room() -> None:
    api = namespace(hard=50)
    async with extender(api) as one:
        api.put("elasticgpuclaims", claim("big", "now", 60))
        await until(lambda: any("60 more were requested" in event["message"] for event in api.all("events")))
        assert given_out(api) == {}
        quota(api, hard=60)
        await bound(one, "big")


async def test_claims_without_a_pod_count_beside_pods_and_each_other() -> None:
    api = namespace(hard=90, used=30)
    async with extender(api) as one:
        api.put("elasticgpuclaims", claim("first", "now", 40))
        await bound(one, "first")
        api.put("elasticgpuclaims", claim("second", "now", 30))
        await until(lambda: any("40 more by" in event["message"] for event in api.all("events")))
        one_pod = api.put("pods", counted("p", 30))
        await seen(one, one_pod)
        quota(api, hard=90, used=60)
        with pytest.raises(Refused, match=r"30 of 90 .* are used, and 40 more by .* no pod counts; 30 more were"):
            await one.binder.bind(args(one_pod))
        assert given_out(api) == {"GPU-n0-00000000": 40}
        quota(api, hard=100, used=60)
        await one.binder.bind(args(one_pod))


async def test_a_claim_that_a_pod_counts_is_counted_once() -> None:
    api = namespace(hard=40)
    async with extender(api) as one:
        api.put("elasticgpuclaims", claim("c", "now", 40))
        await bound(one, "c")
        user = api.put("pods", counted("p", 40, uses="c"))
        quota(api, hard=40, used=40)
        await seen(one, user)
        await one.binder.bind(args(user))


async def test_a_claim_of_several_pods_counts_with_none_of_them() -> None:
    api = namespace(hard=50)
    shared = gpu_class("shared", "WaitForFirstConsumer") | {"provisioner": names.QGPU}
    api.put("elasticgpuclasses", shared | {"parameters": {"shareable": "true"}})
    api.put("elasticgpuclaims", claim("c", "shared", 60))
    async with extender(api) as one:
        user = pod("p", annotations={names.CLAIM_PREFIXES[0] + "app": "c"})
        user = api.put("pods", user)
        await seen(one, user)
        with pytest.raises(Refused, match="60 more were requested"):
            await one.binder.bind(args(user))
        quota(api, hard=60)
        await one.binder.bind(args(user))


async def test_a_namespace_without_claims_asks_for_no_quota() -> None:
    api = namespace(hard=1)
    async with extender(api) as one:
        user = api.put("pods", pod("p"))
        await seen(one, user)
        await one.binder.bind(args(user))
    assert not any("resourcequotas" in path for _, path in api.log)


def parking_cluster(*, hard_mib: int) -> FakeAPI:
    """A node with memory for parked slices, classes that share room, and a namespace with a quota for that memory."""
    api = cluster()
    node = api.put("nodes", {"kind": "Node", "metadata": {"name": "n0"}})
    node["metadata"]["annotations"] = {names.PARKING_MEMORY: "100000"}
    api.put("nodes", node)
    for name, mode in (("now", "Immediate"), ("later", "WaitForFirstConsumer")):
        parameters = {"parking": "true", "parkingResident": "10%"}
        api.put("elasticgpuclasses", gpu_class(name, mode) | {"parameters": parameters})
    parking_quota(api, hard_mib)
    return api


def parking_quota(api: FakeAPI, hard_mib: int) -> None:
    status = {"hard": {names.PARKING_QUOTA: str(hard_mib)}, "used": {names.PARKING_QUOTA: "0"}}
    api.put("resourcequotas", {"kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "ns"}, "status": status})


async def test_memory_of_nodes_for_parked_slices_is_counted_by_claim() -> None:
    api = parking_cluster(hard_mib=1024)
    async with extender(api) as one:
        api.put("elasticgpuclaims", claim("first", "now", 10))
        await bound(one, "first")
        api.put("elasticgpuclaims", claim("second", "now", 10))
        why = "1024 of 1024 MiB of nodes' memory for parked slices are used; 1024 more were requested"
        await until(lambda: any(why in event["message"] for event in api.all("events")))
        parking_quota(api, 2048)
        await bound(one, "second")


async def test_a_pod_whose_claim_is_beyond_the_memory_for_parked_slices_is_not_bound() -> None:
    api = parking_cluster(hard_mib=1024)
    async with extender(api) as one:
        for number in range(2):
            api.put("elasticgpuclaims", claim(f"c{number}", "later", 10))
        pods = [api.put("pods", counted(f"p{number}", 10, f"c{number}")) for number in range(2)]
        for each in pods:
            await seen(one, each)
        await one.binder.bind(args(pods[0]))
        with pytest.raises(Refused, match=r"1024 of 1024 MiB of nodes' memory for parked slices are used"):
            await one.binder.bind(args(pods[1]))
        parking_quota(api, 2048)
        await one.binder.bind(args(pods[1]))


async def test_slices_with_their_own_room_need_no_memory_of_the_node() -> None:
    api = parking_cluster(hard_mib=0)
    api.put("elasticgpuclasses", gpu_class("plain", "Immediate"))
    async with extender(api) as one:
        api.put("elasticgpuclaims", claim("own", "plain", 10))
        await bound(one, "own")
