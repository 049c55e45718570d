"""Cards that are cordoned or sick: nothing new comes to them, what is there stays, and people are told."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.api.objects import ElasticGPU, ElasticGPUClaim
from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.kubernetes import Event, Pod
from egpu_base.kubernetes import Client
from egpu_sim.machines.faults import Xid, inject
from egpu_sim.machines.machine import open_machine
from support.commands import Place
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Cluster]:
    async with cluster(ClusterConfig(nodes=1, cards_per_node=2)) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def client(running: Cluster) -> AsyncIterator[Client]:
    async with running.client() as one:
        yield one


def pod(name: str, core: int) -> dict[str, Any]:
    limits = {names.GPU_CORE: core, names.GPU_MEMORY: 1024}
    container = {"name": "app", "image": "any", "command": ["sleep", "1000"], "resources": {"limits": limits}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def card_of(client: Client, name: str) -> int:
    """Where the pod runs, once it does."""

    async def running() -> Pod | None:
        found = await client.get(Pod, name, namespace="default")
        return found if found.status.phase == "Running" else None

    text = (await until(running, f"{name} runs", seconds=60)).annotations[names.ALLOCATION]
    return decode_allocation(text).containers["app"].cards[0].index


async def test_a_cordoned_card_takes_nothing_until_it_is_uncordoned(
    running: Cluster, client: Client, place: Place
) -> None:
    def egpu(*arguments: str) -> str:
        done = place.run(*arguments, KUBECONFIG=str(running.kubeconfig))
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert "it gets no new slices" in await asyncio.to_thread(egpu, "cordon", "node-1/0")
    assert "cordoned" in await asyncio.to_thread(egpu, "get", "gpus")
    await manifests.create(client, [pod("a", 60)])
    assert await card_of(client, "a") == 1
    await manifests.create(client, [pod("b", 60)])

    async def refused() -> str:
        found = await client.list(Event, namespace="default")
        return next((one.message for one in found if one.involved_object.name == "b"), "")

    await until(refused, seconds=60)
    assert "is cordoned" in await asyncio.to_thread(egpu, "explain", "pod", "b")
    await asyncio.to_thread(egpu, "uncordon", "node-1/0")
    assert await card_of(client, "b") == 0
    wrong = await asyncio.to_thread(place.run, "cordon", "node-1/7", KUBECONFIG=str(running.kubeconfig))
    assert "no card is called 'node-1/7'" in wrong.stderr


async def test_a_sick_card_takes_nothing_its_claims_say_so_and_the_other_card_is_used(
    running: Cluster, client: Client
) -> None:
    """The pods a and b of above are on both cards; the one on card 0 is as good as all of it in the node's sums."""
    klass = {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticGPUClass",
        "metadata": {"name": "slices"},
        "provisioner": names.VCUDA,
        "eGPUBindingMode": "Immediate",
    }
    requests = {names.GPU_CORE: 30, names.GPU_MEMORY: 1024}
    claim = {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticGPUClaim",
        "metadata": {"name": "c"},
        "spec": {"elasticGPUClassName": "slices", "resources": {"requests": requests}},
    }
    await manifests.create(client, [klass, claim])

    async def bound() -> int | None:
        held = (await client.get(ElasticGPUClaim, "c", namespace="default")).status.allocation
        return None if held is None else held.container.cards[0].index + 1

    sick = await until(bound, seconds=60) - 1
    machine = open_machine(running.node_dir("node-1") / "machine")
    inject(machine, sick, Xid(79))

    async def told() -> str:
        conditions = (await client.get(ElasticGPUClaim, "c", namespace="default")).status.conditions
        return next((one.message for one in conditions if one.type == "CardsHealthy" and one.status == "False"), "")

    assert f"card {sick} of node node-1 is unhealthy: XID 79" in await until(told, seconds=60)
    await manifests.create(client, [pod("d", 35)])
    assert await card_of(client, "d") == 1 - sick
    events = await client.list(Event)
    (gpu,) = [g for g in await client.list(ElasticGPU) if g.spec.physical_gpu and g.spec.physical_gpu.index == sick]
    assert any(one.reason == "Unhealthy" and one.involved_object.name == gpu.name for one in events)
    assert any(one.reason == "CardUnhealthy" and one.involved_object.name == "c" for one in events)
    assert (await client.get(Pod, "a", namespace="default")).status.phase == "Running"
