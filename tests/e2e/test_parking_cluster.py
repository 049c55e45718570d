"""A class with `parking`, from its YAML to a pod that is parked by its annotation and goes on with its next call. Its
memory is more than its own room, so it has it from the agent."""

import sys
import textwrap
from typing import Any

import pytest
import yaml

from egpu.api import names
from egpu.laptop import manifests
from egpu.laptop.cluster import ClusterConfig, cluster
from egpu_base.api.kubernetes import Event, Node, Pod
from egpu_base.kubernetes import Client
from support.waiting import until

MANIFESTS = """
apiVersion: elasticgpu.io/v1alpha1
kind: ElasticGPUClass
metadata: {name: parkable}
provisioner: elasticgpu.io/vcuda
parameters: {parking: "true", parkingResident: 1%, parkingIdle: 1h}
eGPUBindingMode: WaitForFirstConsumer
---
apiVersion: elasticgpu.io/v1alpha1
kind: ElasticGPUClaim
metadata: {name: sleeper}
spec:
  elasticGPUClassName: parkable
  resources: {requests: {elasticgpu.io/gpu-core: 10, elasticgpu.io/gpu-memory: 1Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: sleeper, annotations: {elasticgpu.io/egpuc-app: sleeper}}
spec:
  restartPolicy: Never
  containers: [{name: app, image: elasticgpu.io/sample-memory}]
"""

PROGRAM = """
    import os, sys, time
    import numpy as np
    from cuda.bindings import driver

    driver.cuInit(0)
    driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
    data = np.arange(8 << 20, dtype=np.uint32)
    pointer = driver.cuMemAlloc(data.nbytes)[1]
    driver.cuMemcpyHtoD(pointer, data.ctypes.data, data.nbytes)
    print("ready", flush=True)
    back = np.zeros_like(data)
    time.sleep(SECONDS)
    driver.cuMemcpyDtoH(back.ctypes.data, pointer, back.nbytes)
    print(bool((back == data).all()), flush=True)
    time.sleep(600)
"""


async def log_of(client: Client) -> list[str]:
    pod = await client.get(Pod, "sleeper", namespace="default")
    if pod.status.phase == "Pending":
        return []
    text = await client.text("/api/v1/namespaces/default/pods/sleeper/log", params={"container": "app"})
    return text.split()


async def offering(client: Client) -> list[Node]:
    return [one for one in await client.list(Node) if names.PARKING_MEMORY in one.annotations]


async def events_of(client: Client) -> dict[str, str]:
    found = await client.list(Event, namespace="default")
    return {one.reason: one.message for one in found if one.involved_object.name == "sleeper"}


async def ask(client: Client, number: int) -> None:
    annotations = {names.PARK_REQUEST: str(number)}
    await client.patch(Pod, "sleeper", {"metadata": {"annotations": annotations}}, namespace="default")


async def event(client: Client, reason: str) -> str:
    async def written() -> str | None:
        return (await events_of(client)).get(reason)

    return await until(written, reason)


@pytest.mark.parametrize("technology", [names.VCUDA, names.QGPU])
async def test_a_pod_is_parked_by_its_annotation_and_woken_by_its_next_call(technology: str) -> None:
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(MANIFESTS.replace(names.VCUDA, technology)))
    program = textwrap.dedent(PROGRAM).replace("SECONDS", "15")
    documents[-1]["spec"]["containers"][0]["command"] = [sys.executable, "-c", program]
    async with cluster(ClusterConfig(nodes=1, cards_per_node=1)) as running, running.client() as client:
        node, *_ = await until(lambda: offering(client), "a node with memory for parked slices")
        assert int(node.annotations[names.PARKING_MEMORY]) > 1024
        await manifests.create(client, documents)

        async def says(count: int) -> bool:
            return len(await log_of(client)) >= count

        await until(lambda: says(1), "it is ready")
        await ask(client, 1)
        assert "32 MiB are parked" in await event(client, "GPUMemoryParked")
        await ask(client, 2)
        assert "0 MiB are parked" in await event(client, "GPUMemoryWoken")
        await ask(client, 3)
        await until(lambda: says(2), "its call found the memory")
        assert await log_of(client) == ["ready", "True"]
