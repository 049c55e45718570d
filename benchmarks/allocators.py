"""The cost of a pod with a ResourceClaim, by the program that gives out its card.

    names    pods that ask by resource names, on priced nodes: the extender gives out the card
    priced   pods with a claim, on priced nodes: the extender writes the claim's allocation
    dra      pods with a claim, on nodes with `dra`: kube-scheduler allocates, and no program of ours decides

All ask for the same. The claims come from a template, so Kubernetes' own controller makes each of them. Processor time
counts from the first creation until all pods run: the agents' has the new order of the ResourceSlices, and what the
claims got. The nodes of both kinds run on this computer. With `--kubernetes DIR` the control plane is Kubernetes's own;
else the row of the API server has the simulated scheduler and controllers in it, whose time says nothing about
Kubernetes'.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.placement import GPU, Measured, Placed, a_pod, counts, rounded
from benchmarks.report import Report
from egpu.api import names
from egpu.api.objects import ElasticGPU
from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from egpu_base.api.kubernetes import Node
from egpu_base.kubernetes import Client
from support.waiting import until

ALLOCATORS: Final = (names.PRICED, names.DRA)
NODES_OF_EACH: Final = 2
CARDS_PER_NODE: Final = 8
PODS: Final = 100
"""They fit on the nodes of one kind, ten to a card."""
READY_SECONDS: Final = 180.0
SETTLE_SECONDS: Final = 5.0
CLASS: Final = "slice"
TEMPLATES: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    pods = PODS // 5 if report.options.quick else PODS
    found = asyncio.run(_measured(pods, report.options.kubernetes))
    title = "Kubernetes's own control plane" if report.options.kubernetes is not None else "embedded control plane"
    rows = [("pods a second until they run", *(f"{one.per_second:.1f}" for one in found.values()))]
    components = dict.fromkeys(name for one in found.values() for name in one.processor_ms)
    for name in components:
        rows.append((f"{name}, ms", *(f"{one.processor_ms.get(name, 0.0):.1f}" for one in found.values())))
    report.table(f"{title}: {pods} pods of each kind, processor ms a pod", ("", *found), rows)
    return {
        "kubernetes": report.options.kubernetes is not None,
        "pods": pods,
        **{
            name: {"per_second": round(one.per_second, 1), "processor_ms": rounded(one.processor_ms)}
            for name, one in found.items()
        },
    }


async def _measured(pods: int, kubernetes: Path | None) -> dict[str, Placed]:
    nodes = NODES_OF_EACH * len(ALLOCATORS)
    config = ClusterConfig(
        nodes=nodes, cards_per_node=CARDS_PER_NODE, kubernetes=kubernetes, pool=False, log_level="warning"
    )
    async with cluster(config) as running, running.client() as client:
        await _prepare(running, client)
        async with counts(running, client) as (_, run_already):
            measured, found = Measured(running, client, pods), dict[str, Placed]()
            for prefix, count in (("warm", pods // 5), ("count", pods)):
                for kind, (allocator, spec) in _kinds().items():
                    made = _pods(f"{prefix}-{kind}", count, allocator, spec)
                    found[kind] = await measured.placed(f"{prefix}-{kind}", made, run_already)
                    await _until_freed(client)
    return found


def _kinds() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the allocator of the nodes, and what differs in the spec of pods, by kind."""
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": CLASS}]}
    return {"names": (names.PRICED, {}), **{allocator: (allocator, claims) for allocator in ALLOCATORS}}


def _pods(prefix: str, count: int, allocator: str, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    pods: list[dict[str, Any]] = []
    for number in range(count):
        pod = a_pod(f"{prefix}-{number}", {} if spec else GPU)
        pod["spec"] |= {**spec, "nodeSelector": {names.ALLOCATOR: allocator}}
        if spec:
            pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        pods.append(pod)
    return pods


async def _prepare(running: Cluster, client: Client) -> None:
    """Give each node its allocator, and make class and template."""
    klass = {"apiVersion": names.API_VERSION, "kind": "ElasticGPUClass", "metadata": {"name": CLASS}}
    await manifests.create(client, [{**klass, "provisioner": names.VCUDA}])
    wanted = {node: ALLOCATORS[at % len(ALLOCATORS)] for at, node in enumerate(sorted(running.node_names))}
    for node, allocator in wanted.items():
        await client.patch(Node, node, {"metadata": {"labels": {names.ALLOCATOR: allocator}}})
        running.fleet.children[f"agent-{node}"].kill()  # a starting agent reads it at once
    amounts = {"cores": GPU[names.GPU_CORE], "memory": f"{GPU[names.GPU_MEMORY]}Mi"}
    exactly = {"deviceClassName": CLASS, "capacity": {"requests": amounts}}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    await client.raw("POST", TEMPLATES, body={"metadata": {"name": CLASS}, "spec": {"spec": spec}})
    await until(lambda: _ready(client, wanted), f"nodes that serve claims: {wanted}", seconds=READY_SECONDS)


async def _ready(client: Client, wanted: Mapping[str, str]) -> bool:
    """Return whether all nodes serve claims as wanted."""
    if await client.find(DeviceClass, CLASS) is None:
        return False
    cards = [one.spec for one in await client.list(ElasticGPU) if one.spec.physical_gpu is not None]
    told = all(one.physical_gpu is not None and one.physical_gpu.allocator == wanted[one.node_name] for one in cards)
    return told and {one.spec.node_name for one in await client.list(ResourceSlice)} == set(wanted)


async def _until_freed(client: Client) -> None:
    """Wait until no claims are left, and the agents have told of it."""

    async def freed() -> bool:
        return not await client.list(ResourceClaim)

    await until(freed, "no claim", seconds=READY_SECONDS)
    await asyncio.sleep(SETTLE_SECONDS)
