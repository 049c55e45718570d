"""Pods with ResourceClaims and pods with resource names share the cards of nodes, and one extender gives them out."""

import asyncio
from collections import Counter
from typing import Any

from egpu.adapters.slices.pages import read_policy
from egpu.api import names
from egpu.cli.snapshot import load
from egpu.laptop import manifests
from egpu.laptop.cluster import NAMESPACE, Cluster, ClusterConfig, cluster
from egpu_base.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.kubernetes import Client
from egpu_sim.cluster.apiserver import User
from egpu_sim.cluster.apiserver.access.authorization import Wanted
from support.claims import a_class
from support.waiting import until

SECONDS = 90.0
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
SIZES = {"small": ("20", "2Gi"), "middle": ("40", "4Gi"), "large": ("70", "6Gi")}


def template(name: str, cores: str, memory: str) -> dict[str, Any]:
    amounts = {"cores": cores, "memory": memory}
    exactly = {"deviceClassName": "slice", "capacity": {"requests": amounts}}
    requests = [{"name": "gpu", "exactly": exactly}]
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests}}}}


def a_pod(name: str, *sizes: str) -> dict[str, Any]:
    """A pod with a container for each claim."""
    containers = [
        {
            "name": f"c{number}",
            "image": "elasticgpu.io/shell",
            "command": ["sleep", "600"],
            "resources": {"claims": [{"name": f"gpu{number}"}]},
        }
        for number in range(len(sizes))
    ]
    claims = [{"name": f"gpu{number}", "resourceClaimTemplateName": size} for number, size in enumerate(sizes)]
    spec = {"restartPolicy": "Never", "containers": containers, "resourceClaims": claims}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def usual(name: str, core: int) -> dict[str, Any]:
    limits = {names.GPU_CORE: core, names.GPU_MEMORY: 1024}
    container = {"name": "app", "image": "elasticgpu.io/shell", "command": ["sleep", "600"]}
    spec = {"restartPolicy": "Never", "containers": [{**container, "resources": {"limits": limits}}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def running_pods(client: Client) -> set[str]:
    pods = await client.list(Pod, namespace="default")
    assert not [pod.name for pod in pods if pod.status.phase == "Failed"]
    return {pod.name for pod in pods if pod.status.phase == "Running"}


async def runs(client: Client, *wanted: str) -> None:
    async def they_do() -> bool:
        return set(wanted) <= await running_pods(client)

    await until(they_do, f"{wanted} run", seconds=SECONDS)


async def label_all(running: Cluster, client: Client, value: str | None) -> None:
    for node in running.node_names:
        await client.patch(Node, node, {"metadata": {"labels": {names.ALLOCATOR: value}}})
        running.fleet.children[f"agent-{node}"].kill()  # a starting agent reads it at once


async def priced(running: Cluster, client: Client) -> bool:
    found = await client.list(ResourceSlice)
    taints = [[taint.key for taint in device.taints or ()] for one in found for device in one.spec.devices or ()]
    cache = (await load(client)).cache
    ready = sorted(cache.device_claims.priced_nodes()) == sorted(running.node_names)
    return ready and len(found) == len(running.node_names) and all(names.PRICED_TAINT in one for one in taints)


def _of(claim: ResourceClaim, pod: Pod) -> bool:
    return any(owner.uid == pod.uid for owner in claim.metadata.owner_references or ())


def places(claim: ResourceClaim) -> list[tuple[str, str]]:
    allocation = claim.status.allocation
    return [] if allocation is None else [(one.pool, one.device) for one in allocation.devices.results or ()]


async def no_card_is_over_committed(client: Client) -> None:
    snapshot = await load(client)
    assert not snapshot.cache.problems()


async def test_claims_and_pods_share_cards_by_one_extender() -> None:
    denied: Counter[tuple[str, Wanted]] = Counter()

    def listen(user: User, wanted: Wanted, allowed: bool) -> None:
        if not allowed and user.name.startswith(f"system:serviceaccount:{NAMESPACE}:"):
            denied[user.name, wanted] += 1

    config = ClusterConfig(nodes=2, cards_per_node=2, node_policy="binpack", card_policy="binpack", listener=listen)
    async with cluster(config) as running, running.client() as client:
        await manifests.create(client, [a_class("slice", names.VCUDA, "WaitForFirstConsumer"), usual("first", 30)])
        await runs(client, "first")
        first = await client.get(Pod, "first", namespace="default")
        await label_all(running, client, names.PRICED)
        await until(lambda: client.find(DeviceClass, "slice"))
        await until(lambda: priced(running, client), "cards are priced", seconds=SECONDS)
        for name, (cores, memory) in SIZES.items():
            await client.raw("POST", TEMPLATES, body=template(name, cores, memory))

        await each_claim_gets_its_slice(running, client)
        await manifests.create(client, [usual("beside", 20)])
        await runs(client, "beside")
        await no_card_is_over_committed(client)
        await the_writer_dies_again_and_again(running, client)
        await no_card_is_over_committed(client)
        again = await client.get(Pod, "first", namespace="default")
        assert (again.uid, again.status.phase) == (first.uid, "Running")  # through the change of the node

        for pod in await client.list(Pod, namespace="default"):
            if pod.spec.resource_claims:
                await client.delete(Pod, pod.name, namespace="default", grace_period_seconds=0)
        await label_all(running, client, None)

        async def ended() -> bool:
            return not await client.list(ResourceSlice) and not await client.list(ResourceClaim)

        await until(ended, "the nodes serve no claims any more", seconds=SECONDS)
        await runs(client, "first", "beside")
    assert not denied


async def test_a_more_important_pod_takes_the_card_of_a_claim() -> None:
    async with cluster(ClusterConfig(nodes=1, cards_per_node=1)) as running, running.client() as client:
        await label_all(running, client, names.PRICED)
        await manifests.create(client, [a_class("slice", names.VCUDA, "WaitForFirstConsumer")])
        await until(lambda: client.find(DeviceClass, "slice"))
        await until(lambda: priced(running, client), "cards are priced", seconds=SECONDS)
        await client.raw("POST", TEMPLATES, body=template("large", *SIZES["large"]))
        for level, pod in enumerate([a_pod("low", "large"), a_pod("high", "large"), usual("highest", 70)]):
            name = f"level-{level}"
            body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
            await client.raw("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body={**body, "value": level})
            pod["spec"] |= {"priorityClassName": name, "terminationGracePeriodSeconds": 0}
            await manifests.create(client, [pod])
            await runs(client, pod["metadata"]["name"])
            await no_card_is_over_committed(client)
        assert [pod.name for pod in await client.list(Pod, namespace="default")] == ["highest"]
        assert not await client.list(ResourceClaim)


async def each_claim_gets_its_slice(running: Cluster, client: Client) -> None:
    """On one node, with its limits. Which card it is, tests/unit/dra compares with pods: here the extender may choose
    before it has seen all that the API server has."""
    for name, sizes in (("one", ("small",)), ("two", ("middle", "small")), ("three", ("large",))):
        await manifests.create(client, [a_pod(name, *sizes)])
        await runs(client, name)
        pod = await client.get(Pod, name, namespace="default")
        found = sorted(place for one in await client.list(ResourceClaim) if _of(one, pod) for place in places(one))
        assert len(found) == len(sizes)
        assert {node for node, _ in found} == {pod.spec.node_name}
        slots = [
            slot
            for one in await client.list(ResourceClaim)
            if _of(one, pod)
            for slot in (running.node_dir(pod.spec.node_name) / "agent" / "slots").glob(f"{one.uid}.*")
        ]
        limits = {read_policy(slot / "policy").devices[0].core_ppm // 10_000 for slot in slots}
        assert limits == {int(SIZES[size][0]) for size in sizes}


async def the_writer_dies_again_and_again(running: Cluster, client: Client) -> None:
    """Pods come and go meanwhile. What fits runs in the end."""
    for number in range(6):
        await manifests.create(client, [a_pod(f"many{number}", "small")])
        if number % 2:
            running.fleet.children["extender"].kill()
            await asyncio.sleep(0.2)
    await client.delete(Pod, "three", namespace="default", grace_period_seconds=0)
    await runs(client, *(f"many{number}" for number in range(6)))
