"""The simulated scheduler beside the simulated API server: pods of one Deployment, and where they are placed."""

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from egpu_base.api.kubernetes import Event, Node, NodeStatus, ObjectMeta, Pod
from egpu_base.kubernetes import Client
from egpu_sim.cluster.apiserver import Config, serve
from egpu_sim.cluster.controllers import Controllers
from egpu_sim.cluster.scheduler.extender import Extender
from egpu_sim.cluster.scheduler.loop import Scheduler
from support.waiting import until

HOST = "kubernetes.io/hostname"
APP = {"matchLabels": {"app": "a"}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SPREAD = {
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": APP}
    ]
}
APART = {"affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": HOST, "labelSelector": APP}]}}}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[Client]:
    """No extender is asked: none of the resources is managed."""
    nobody = Extender("https://127.0.0.1:1", tls=ssl.create_default_context(), managed_resources=frozenset())
    async with serve(Config(tmp_path)) as handle, Client.from_kubeconfig(handle.kubeconfig) as one, nobody:
        tasks = [asyncio.create_task(each.run()) for each in (Controllers(one), Scheduler(one, nobody))]
        yield one
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def add_node(client: Client, name: str) -> None:
    allocatable: dict[str, Any] = {"cpu": "8", "memory": "8Gi", "pods": "10"}
    ready: Any = [{"type": "Ready", "status": "True"}]
    await client.create(Node, Node(metadata=ObjectMeta(name=name, labels={HOST: name})))
    status = {"status": {"allocatable": allocatable, "conditions": ready}}
    await client.patch(Node, name, status, subresource="status")
    assert (await client.get(Node, name)).status != NodeStatus()


async def deploy(client: Client, replicas: int, spec: dict[str, Any]) -> None:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "a", "image": "i"}], **spec}}
    body = {"metadata": {"name": "d"}, "spec": {"replicas": replicas, "selector": APP, "template": template}}
    await client.raw("POST", "/apis/apps/v1/namespaces/default/deployments", body=body)


async def placed(client: Client, counts: dict[str, int]) -> None:
    """Until so many pods are on each node; "" stands for none."""

    async def so_many() -> bool:
        return Counter(pod.spec.node_name for pod in await client.list(Pod, namespace="default")) == Counter(counts)

    await until(so_many)


async def test_pods_of_a_deployment_are_spread_over_the_nodes(client: Client):
    for name in ("node-1", "node-2"):
        await add_node(client, name)
    await deploy(client, 4, SPREAD)
    await placed(client, {"node-1": 2, "node-2": 2})


async def test_a_pod_that_must_be_apart_waits_for_another_node(client: Client):
    for name in ("node-1", "node-2"):
        await add_node(client, name)
    await deploy(client, 3, APART)
    await placed(client, {"node-1": 1, "node-2": 1, "": 1})
    said = "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules."

    async def told() -> bool:
        events = await client.list(Event, namespace="default")
        return any(one.reason == "FailedScheduling" and one.message.startswith(said) for one in events)

    await until(told)
    await add_node(client, "node-3")
    await placed(client, {"node-1": 1, "node-2": 1, "node-3": 1})
