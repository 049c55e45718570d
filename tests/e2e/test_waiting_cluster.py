"""Pods that wait on a quiet cluster: what they wait for gets free, and nothing that a scheduler watches tells of it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUClaim
from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.kubernetes import Event, Pod
from egpu_base.kubernetes import Client
from support.clearing import clear
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Cluster]:
    async with cluster(ClusterConfig(nodes=1, cards_per_node=1, scheduler="existing")) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def client(running: Cluster) -> AsyncIterator[Client]:
    """Sees to it that the test leaves no pod, claim or class."""
    async with running.client() as one:
        yield one
        await clear(one)


def pod(name: str, core: int, *, claim: str = "") -> dict[str, Any]:
    limits = {} if claim else {names.GPU_CORE: core, names.GPU_MEMORY: 1024}
    annotations = {f"{names.CLAIM_PREFIXES[0]}app": claim} if claim else {}
    container = {"name": "app", "image": "any", "command": ["sleep", "1000"], "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }


def a_class(reclaim: str) -> dict[str, Any]:
    return {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "ElasticGPUClass",
        "metadata": {"name": reclaim.lower()},
        "provisioner": names.VCUDA,
        "reclaimPolicy": reclaim,
        "eGPUBindingMode": "Immediate",
    }


def a_claim(name: str, core: int, reclaim: str) -> dict[str, Any]:
    requests = {names.GPU_CORE: core, names.GPU_MEMORY: 1024}
    return {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "ElasticGPUClaim",
        "metadata": {"name": name},
        "spec": {"elasticGPUClassName": reclaim.lower(), "resources": {"requests": requests}},
    }


async def refused(client: Client, name: str) -> None:
    async def told() -> bool:
        return any(
            one.reason == "FailedScheduling" and one.involved_object.name == name
            for one in await client.list(Event, namespace="default")
        )

    await until(told, seconds=60)


async def runs(client: Client, name: str) -> None:
    async def running() -> bool:
        return (await client.get(Pod, name, namespace="default")).status.phase == "Running"

    await until(running, seconds=30)


async def holding(client: Client, name: str, reclaim: str) -> None:
    """A claim that holds the card, although nobody uses it."""
    await manifests.create(client, [a_class(reclaim), a_claim(name, 80, reclaim)])

    async def bound() -> bool:
        return (await client.get(ElasticGPUClaim, name, namespace="default")).status.phase == "Bound"

    await until(bound, seconds=60)


async def test_a_claim_is_given_up(client: Client):
    await holding(client, "c", "Delete")
    await manifests.create(client, [pod("w", 50)])
    await refused(client, "w")
    await client.delete(ElasticGPUClaim, "c", namespace="default")
    await runs(client, "w")


async def test_a_retained_slice_is_given_up(client: Client):
    await holding(client, "c", "Retain")
    await client.delete(ElasticGPUClaim, "c", namespace="default")
    await manifests.create(client, [pod("w", 50)])
    await refused(client, "w")
    for gpu in await client.list(ElasticGPU):
        if gpu.spec.slice:
            await client.delete(ElasticGPU, gpu.name)
    await runs(client, "w")


async def test_the_claim_that_a_pod_uses_is_bound(client: Client):
    await holding(client, "c", "Delete")
    await manifests.create(client, [a_claim("late", 50, "Delete"), pod("w", 0, claim="late")])
    await refused(client, "w")
    await client.delete(ElasticGPUClaim, "c", namespace="default")
    await runs(client, "w")


async def test_of_those_that_wait_only_those_that_fit_are_asked_about_again(client: Client):
    await holding(client, "c", "Delete")
    waiting = [f"w-{number}" for number in range(4)]
    await manifests.create(client, [pod(name, 60) for name in waiting])
    for name in waiting:
        await refused(client, name)
    await client.delete(ElasticGPUClaim, "c", namespace="default")

    async def started() -> list[str]:
        pods = await client.list(Pod, namespace="default")
        return [each.name for each in pods if each.spec.node_name]

    await until(started, seconds=30)
    assert len(await started()) == 1
