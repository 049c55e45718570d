"""Claims of devices through their whole life: made from templates, allocated, reserved, and freed."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from egpu_base.api.kubernetes import Event, Node, ObjectMeta, Pod
from egpu_base.kubernetes import Client
from egpu_sim.cluster.apiserver import Config, serve
from egpu_sim.cluster.cluster import OURS
from egpu_sim.cluster.controllers import Controllers
from egpu_sim.cluster.dynamic.kinds import FINALIZER, ResourceClaim
from egpu_sim.cluster.scheduler.extender import Extender
from egpu_sim.cluster.scheduler.loop import Scheduler
from support.waiting import until

ROOT = "/apis/resource.k8s.io/v1"
NAMESPACED = f"{ROOT}/namespaces/default"
PODS = "/api/v1/namespaces/default/pods"
DRIVER = "gpu.example.com"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[Client]:
    """Scheduler and controllers have their usual rights, so that a missing one is found."""
    nobody = Extender("https://127.0.0.1:1", tls=ssl.create_default_context(), managed_resources=frozenset())
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(serve(Config(tmp_path, users=OURS)))
        admin = await stack.enter_async_context(Client.from_kubeconfig(server.kubeconfig))
        parts = [
            await stack.enter_async_context(Client.from_kubeconfig(server.kubeconfigs[name]))
            for name in ("scheduler", "controllers")
        ]
        await stack.enter_async_context(nobody)
        tasks = [asyncio.create_task(each.run()) for each in (Scheduler(parts[0], nobody), Controllers(parts[1]))]
        yield admin
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def prepare(client: Client, *, cores: str = "100") -> None:
    """Make a node with one card that claims share, its class, and a template for 60 of its cores."""
    await client.create(Node, Node(metadata=ObjectMeta(name="node-1")))
    ready = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}, "conditions": ready}
    await client.patch(Node, "node-1", {"status": status}, subresource="status")
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    await client.raw(
        "POST", f"{ROOT}/deviceclasses", body={"metadata": {"name": "gpu"}, "spec": {"selectors": selectors}}
    )
    policy = {"default": cores, "validRange": {"min": "1", "step": "1"}}
    card = {"name": "gpu-0", "allowMultipleAllocations": True,
            "capacity": {"cores": {"value": cores, "requestPolicy": policy}}}  # fmt: skip
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "node-1", "pool": pool, "devices": [card]}
    await client.raw("POST", f"{ROOT}/resourceslices", body={"metadata": {"name": "slice"}, "spec": spec})
    template = {"metadata": {"labels": {"of": "template"}}, "spec": claim_spec()}
    await client.raw(
        "POST", f"{NAMESPACED}/resourceclaimtemplates", body={"metadata": {"name": "part"}, "spec": template}
    )


def claim_spec() -> dict[str, Any]:
    exactly = {"deviceClassName": "gpu", "capacity": {"requests": {"cores": "60"}}}
    return {"devices": {"requests": [{"name": "card", "exactly": exactly}]}}


async def make_pod(client: Client, name: str, **claim: str) -> None:
    source = claim or {"resourceClaimTemplateName": "part"}
    container = {"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "gpu", **source}]}
    await client.raw("POST", PODS, body={"metadata": {"name": name}, "spec": spec})


async def node_of(client: Client, pod: str) -> str:
    return (await client.get(Pod, pod, namespace="default")).spec.node_name


async def claims(client: Client) -> list[ResourceClaim]:
    return list(await client.list(ResourceClaim, namespace="default"))


async def reserved_for(client: Client, pod: str) -> bool:
    return [one["name"] for claim in await claims(client) for one in claim.reserved_for] == [pod]


async def end(client: Client, pod: str) -> None:
    await client.patch(Pod, pod, {"status": {"phase": "Succeeded"}}, namespace="default", subresource="status")


async def test_a_pod_gets_a_claim_from_its_template_and_the_next_one_waits_for_it(client: Client) -> None:
    await prepare(client)
    await make_pod(client, "first")
    await until(lambda: node_of(client, "first"), "scheduled")
    (made,) = await claims(client)
    assert made.name.startswith("first-gpu-")
    assert made.metadata.labels == {"of": "template"}
    assert made.metadata.finalizers == [FINALIZER]
    (result,) = made.results
    assert (result["device"], result["consumedCapacity"]) == ("gpu-0", {"cores": "60"})
    assert [one["name"] for one in made.reserved_for] == ["first"]
    assert (made.allocation or {})["allocationTimestamp"]
    pod = await client.get(Pod, "first", namespace="default")
    assert pod.status.resource_claim_statuses == [{"name": "gpu", "resourceClaimName": made.name}]
    lost = {"status": {"reservedFor": None}}
    await client.patch(ResourceClaim, made.name, lost, namespace="default", subresource="status")
    await until(lambda: reserved_for(client, "first"), "reserved for its bound pod again")

    await make_pod(client, "second")

    async def told() -> bool:
        events = await client.list(Event, namespace="default")
        wanted = "0/1 nodes are available: 1 cannot allocate all claims. no new claims to deallocate, preemption: "
        return any(one.involved_object.name == "second" and one.message.startswith(wanted) for one in events)

    await until(told, "the reason")
    await end(client, "first")
    await until(lambda: node_of(client, "second"), "scheduled after the first has ended")

    async def only_one() -> bool:
        return [one.reserved_for[0]["name"] for one in await claims(client) if one.reserved_for] == ["second"]

    await until(only_one, "the first pod's claim is gone")
    await client.delete(Pod, "second", namespace="default", grace_period_seconds=0)

    async def none() -> bool:
        return not await claims(client)

    await until(none, "a claim goes with its pod")


async def test_a_bound_pod_gets_its_reservation_back(client: Client) -> None:
    """kube-scheduler withdraws it if the binding got no answer, and the binding may have been written."""
    await prepare(client)
    await client.raw(
        "POST", f"{NAMESPACED}/resourceclaims", body={"metadata": {"name": "shared"}, "spec": claim_spec()}
    )
    await make_pod(client, "own", resourceClaimName="shared")
    await until(lambda: node_of(client, "own"), "scheduled")
    await make_pod(client, "beside", resourceClaimName="shared")
    await until(lambda: node_of(client, "beside"), "scheduled")
    for left in (["beside"], ["own"]):
        (claim,) = await claims(client)
        kept = [one for one in claim.reserved_for if one["name"] in left]
        patch = {"status": {"reservedFor": kept}}
        await client.patch(ResourceClaim, "shared", patch, namespace="default", subresource="status")

        async def both() -> bool:
            return {one["name"] for one in (await claims(client))[0].reserved_for} == {"own", "beside"}

        await until(both, "both have it")


async def test_pods_share_a_claim_that_people_made(client: Client) -> None:
    await prepare(client)
    for name in ("a", "b"):
        await make_pod(client, name, resourceClaimName="shared")
    await asyncio.sleep(0.2)
    assert not await node_of(client, "a"), "it waits for the claim"
    body = {"metadata": {"name": "shared"}, "spec": claim_spec()}
    await client.raw("POST", f"{NAMESPACED}/resourceclaims", body=body)
    for name in ("a", "b"):
        await until(lambda name=name: node_of(client, name), "scheduled")

    async def users() -> set[str]:
        (claim,) = await claims(client)
        return {one["name"] for one in claim.reserved_for}

    assert await users() == {"a", "b"}
    await end(client, "a")

    async def only_b() -> bool:
        return await users() == {"b"}

    await until(only_b)
    await client.delete(ResourceClaim, "shared", namespace="default")
    assert [one.name for one in await claims(client)] == ["shared"], "it is in use"
    await end(client, "b")

    async def gone() -> bool:
        return not await claims(client)

    await until(gone, "deleted after its last pod has ended")


async def test_a_pod_is_told_what_is_missing_and_goes_on_once_it_is_there(client: Client) -> None:
    await prepare(client)
    await make_pod(client, "p", resourceClaimTemplateName="other")

    async def told(reason: str, text: str) -> bool:
        events = await client.list(Event, namespace="default")
        return any(one.reason == reason and text in one.message for one in events)

    await until(lambda: told("FailedResourceClaimCreation", 'resource claim template "other"'))
    spec = claim_spec()
    spec["devices"]["requests"][0]["exactly"]["deviceClassName"] = "later"
    await client.raw(
        "POST", f"{NAMESPACED}/resourceclaimtemplates", body={"metadata": {"name": "other"}, "spec": {"spec": spec}}
    )
    await until(lambda: told("FailedScheduling", "request card: device class later does not exist"))
    await client.raw("POST", f"{ROOT}/deviceclasses", body={"metadata": {"name": "later"}, "spec": {}})
    await until(lambda: node_of(client, "p"), "scheduled")


@pytest.mark.parametrize("shared", [False, True])
async def test_an_allocation_by_somebody_else_is_used_or_taken_back(client: Client, shared: bool) -> None:
    """It names a node that cannot take the pod, while others could. A claim that another pod has stays as it is."""
    await prepare(client)
    await client.create(Node, Node(metadata=ObjectMeta(name="node-2")))
    ready = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}, "conditions": ready}
    await client.patch(Node, "node-2", {"status": status}, subresource="status")
    await client.patch(Node, "node-1", {"spec": {"unschedulable": True}})
    for name in ("good", "bad"):
        body = {"metadata": {"name": name, "finalizers": [FINALIZER]}, "spec": claim_spec()}
        await client.raw("POST", f"{NAMESPACED}/resourceclaims", body=body)
        await make_pod(client, name, resourceClaimName=name)
    users = [*(["other"] if shared else []), "bad"]
    await allocate(client, "good", "node-2", ["good"])
    await allocate(client, "bad", "node-1", users)
    await until(lambda: node_of(client, "good"), "bound to the node of its claim")
    assert await node_of(client, "good") == "node-2"

    async def settled() -> bool:
        claim = await client.get(ResourceClaim, "bad", namespace="default")
        events = [one.message for one in await client.list(Event, namespace="default")]
        if shared:
            return any("no new claims to deallocate" in message for message in events)
        return claim.allocation is None and not claim.reserved_for

    await until(settled)
    claim = await client.get(ResourceClaim, "bad", namespace="default")
    assert (claim.allocation is not None) == shared
    assert not await node_of(client, "bad")


async def allocate(client: Client, claim: str, node: str, users: list[str]) -> None:
    """Write an allocation and reservations as another allocator does. A user without a pod gets one that runs."""
    for name in users:
        if await client.find(Pod, name, namespace="default") is None:
            spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": node}
            await client.raw("POST", PODS, body={"metadata": {"name": name}, "spec": spec})
    uids = {name: (await client.get(Pod, name, namespace="default")).uid for name in users}
    result = {"request": "card", "driver": DRIVER, "pool": node, "device": "gpu-0"}
    only = {"key": "metadata.name", "operator": "In", "values": [node]}
    allocation = {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [only]}]},
        "allocationTimestamp": "2026-11-27T12:00:00Z",
    }
    reserved = [{"resource": "pods", "name": name, "uid": uid} for name, uid in uids.items()]
    status = {"status": {"allocation": allocation, "reservedFor": reserved}}
    await client.patch(ResourceClaim, claim, status, namespace="default", subresource="status")
