"""A node changes to Kubernetes' own allocation: a pod with a ResourceClaim runs inside its slice there."""

from typing import Any

import msgspec

from egpu.adapters.slices.pages import read_policy
from egpu.api import names
from egpu.core.dra.marking import may_be_allocated
from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.kubernetes import Client
from support.claims import a_class
from support.waiting import until

NODE = "node-1"
CLAIM = {
    "name": "gpu",
    "exactly": {"deviceClassName": "slice", "capacity": {"requests": {"cores": "30", "memory": "4Gi"}}},
}


def a_pod(name: str, image: str, **more: Any) -> dict[str, Any]:
    container = {"name": "app", "image": f"elasticgpu.io/{image}", "resources": {"claims": [{"name": "gpu"}]}, **more}
    claims = [{"name": "gpu", "resourceClaimTemplateName": "slice"}]
    spec = {"restartPolicy": "Never", "containers": [container], "resourceClaims": claims}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def label(running: Cluster, client: Client, value: str | None) -> None:
    """Set the node's label. A starting agent reads it at once, a running one within a minute."""
    await client.patch(Node, NODE, {"metadata": {"labels": {names.ALLOCATOR: value}}})
    running.fleet.children[f"agent-{NODE}"].kill()


async def a_new_claim_is_marked(client: Client) -> bool:
    """Create a claim that no pod uses. It passes as it is while the webhook does not answer in time."""
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    body = {"metadata": {"generateName": "spare-"}, "spec": {"devices": {"requests": [CLAIM]}}}
    made = msgspec.convert(await client.raw("POST", path, body=body), ResourceClaim)
    await client.delete(ResourceClaim, made.name, namespace="default")

    async def gone() -> bool:
        return await client.find(ResourceClaim, made.name, namespace="default") is None

    await until(gone, "a claim with the finalizer can be deleted", seconds=60)
    return may_be_allocated(made)


async def phase(client: Client, pod: str) -> str:
    return (await client.get(Pod, pod, namespace="default")).status.phase


async def test_a_pod_with_a_claim_runs_in_its_slice() -> None:
    async with cluster(ClusterConfig(nodes=1, cards_per_node=2)) as running, running.client() as client:
        await manifests.create(client, [a_class("slice", names.VCUDA, "WaitForFirstConsumer")])
        await label(running, client, names.DRA)
        await until(lambda: client.find(DeviceClass, "slice"))
        await until(lambda: client.list(ResourceSlice), "devices are published", seconds=60)

        await until(lambda: a_new_claim_is_marked(client), "the webhook marks a new claim", seconds=60)
        template = {"metadata": {"name": "slice"}, "spec": {"spec": {"devices": {"requests": [CLAIM]}}}}
        templates = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
        await client.raw("POST", templates, body=template)
        usual = a_pod(
            "usual",
            "shell",
            command=["sleep", "600"],
            resources={"limits": {names.GPU_CORE: 10, names.GPU_MEMORY: 1024}},
        )
        usual["spec"].pop("resourceClaims")
        await manifests.create(
            client, [a_pod("greedy", "sample-memory"), a_pod("idle", "shell", command=["sleep", "600"]), usual]
        )

        async def ended() -> bool:
            return await phase(client, "greedy") in ("Succeeded", "Failed")

        await until(ended, seconds=60)
        said = await client.text("/api/v1/namespaces/default/pods/greedy/log")
        assert await phase(client, "greedy") == "Succeeded", said
        assert "4096" in said

        async def idles() -> bool:
            return await phase(client, "idle") == "Running"

        await until(idles, seconds=60)
        (slot,) = (running.node_dir(NODE) / "agent" / "slots").glob("*.gpu")
        (line,) = read_policy(slot / "policy").devices
        assert (line.core_ppm, line.memory_limit_bytes) == (300_000, 4 << 30)
        (claim,) = [one for one in await client.list(ResourceClaim) if one.status.devices]
        assert (claim.status.devices or [])[0]["data"]["memoryMiB"] == 4096
        assert await phase(client, "usual") == "Pending"  # the extender places nothing here

        await client.delete(Pod, "idle", namespace="default", grace_period_seconds=0)
        await client.delete(Pod, "greedy", namespace="default", grace_period_seconds=0)
        await label(running, client, None)

        async def usual_runs() -> bool:
            return await phase(client, "usual") == "Running"

        await until(usual_runs, "the node is back with the extender", seconds=60)
        assert not await client.list(ResourceSlice)
        assert not slot.exists()
