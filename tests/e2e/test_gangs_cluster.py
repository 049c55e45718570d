"""Gangs on the simulated cluster, as its users meet them: all run or none, whatever is killed."""

import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.cli import views
from egpu.cli.explain import explain_in
from egpu.cli.snapshot import load
from egpu.core.policies.registry import Policies
from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import ElasticGPUError
from egpu_base.kubernetes import Client
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
CARDS = 3


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Cluster]:
    async with cluster(ClusterConfig(nodes=1, cards_per_node=CARDS)) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def client(running: Cluster) -> AsyncIterator[Client]:
    """Sees to it that the test leaves no pod."""
    async with running.client() as one:
        yield one
        await remove(one, *(pod.name for pod in await one.list(Pod, namespace="default")))


def member(name: str, gang: str, size: int, *, timeout: str = "60") -> dict[str, Any]:
    terms = {names.GANG: gang, names.GANG_SIZE: str(size), names.GANG_TIMEOUT: timeout}
    limits = {names.GPU_CORE: 100}
    container = {"name": "app", "image": "any", "command": ["sleep", "1000"], "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": terms},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }


async def bound(client: Client, gang: str) -> list[str]:
    pods = await client.list(Pod, namespace="default", labels=f"{names.GANG}={gang}")
    return sorted(pod.name for pod in pods if pod.spec.node_name)


async def remove(client: Client, *pods: str) -> None:
    for name in pods:
        await client.delete(Pod, name, namespace="default", grace_period_seconds=0)

    async def gone() -> bool:
        return not [pod for pod in await client.list(Pod, namespace="default") if pod.name in pods]

    await until(gone, seconds=90)


async def said(client: Client, pod: str) -> str:
    """What the scheduler wrote into the pod's condition."""
    found = await client.get(Pod, pod, namespace="default")
    return "; ".join(one.message for one in found.status.conditions or [] if one.type == "PodScheduled")


async def test_a_gang_waits_for_its_last_member_and_then_runs_whole(client: Client):
    await manifests.create(client, [member(f"t-{number}", "t", 3) for number in range(2)])

    async def told() -> bool:
        # Of the first member kube-scheduler asked when it was alone, and it has no reason to ask again.
        return "gang t: 2 of 3 members exist" in "".join([await said(client, f"t-{number}") for number in range(2)])

    await until(told, seconds=90)
    assert await bound(client, "t") == []
    explanation = explain_in(await load(client), "default", "t-1", policies=Policies.named())
    assert explanation is not None
    assert explanation.summary == "waits: gang t: 2 of 3 members exist"
    await manifests.create(client, [member("t-2", "t", 3)])

    async def run() -> bool:
        pods = await client.list(Pod, namespace="default")
        return [pod.status.phase for pod in pods] == ["Running"] * 3

    await until(run, seconds=90)
    cards = [
        share.uuid
        for pod in await client.list(Pod, namespace="default")
        for share in decode_allocation(pod.annotations[names.ALLOCATION]).containers["app"].cards
    ]
    assert len(set(cards)) == 3


async def test_a_gang_that_is_too_big_holds_no_card_and_one_behind_it_runs(client: Client):
    await manifests.create(client, [member(f"big-{number}", "big", 4) for number in range(4)])

    async def told() -> bool:
        stuck = "gang big: all 4 members exist, 3 fit at once; big-3 has no room with 3 of the others"
        return stuck in await said(client, "big-3")

    await until(told, seconds=90)
    explanation = explain_in(await load(client), "default", "big-0", policies=Policies.named())
    assert explanation is not None
    assert [card.reason for card in explanation.refusals[0].cards] == ["is allocated whole"] * 3
    await manifests.create(client, [member(f"small-{number}", "small", 3) for number in range(3)])

    async def run() -> bool:
        return len(await bound(client, "small")) == 3

    await until(run, seconds=90)
    assert await bound(client, "big") == []


async def test_gangs_are_whole_again_and_again_while_the_extender_is_killed(running: Cluster, client: Client):
    """Two gangs that do not fit together, made member by member in turn, and SIGKILLs in between."""
    for attempt in range(2):
        gangs = [f"x{attempt}", f"y{attempt}"]
        for number in range(2):
            for gang in gangs:
                await manifests.create(client, [member(f"{gang}-{number}", gang, 2, timeout="2")])
        if (pid := running.fleet.children["extender"].pid) is not None:
            os.kill(pid, signal.SIGKILL)

        async def one_runs_and_the_other_does_not(gangs: list[str] = gangs) -> bool:
            return sorted([len(await bound(client, gang)) for gang in gangs]) == [0, 2]

        await until(one_runs_and_the_other_does_not, seconds=90)
        given = [
            share.uuid
            for pod in await client.list(Pod, namespace="default")
            if pod.spec.node_name
            for share in decode_allocation(pod.annotations[names.ALLOCATION]).containers["app"].cards
        ]
        assert len(given) == len(set(given)), "a card was given out twice"
        await remove(client, *(pod.name for pod in await client.list(Pod, namespace="default")))


async def test_cards_that_nvlink_joins_are_published_required_and_shown(client: Client):
    snapshot = await load(client)
    table = views.gpus(snapshot)
    links = [row[list(table.columns).index("links")] for row in table.rows]
    assert links == ["NVLink 1,2", "NVLink 0,2", "NVLink 0,1"]
    two = member("two", "alone", 1)
    two["metadata"]["annotations"] = {names.LINKS: "nvlink"}
    two["spec"]["containers"][0]["resources"]["limits"] = {names.NVIDIA_GPU: 2}
    await manifests.create(client, [two])

    async def run() -> bool:
        return (await client.get(Pod, "two", namespace="default")).status.phase == "Running"

    await until(run, seconds=90)
    explanation = explain_in(await load(client), "default", "two", policies=Policies.named())
    assert explanation is not None
    assert "container app's 2 cards are joined by NVLink" in explanation.details


async def test_members_that_disagree_are_refused(client: Client):
    await manifests.create(client, [member("d-0", "d", 2)])
    with pytest.raises(ElasticGPUError, match="is 3, and 2 in pod d-0 of the gang d"):
        await manifests.create(client, [member("d-1", "d", 3)])
