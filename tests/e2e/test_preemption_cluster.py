"""A full cluster, and a pod that is more important: who goes for it, who does not, and what it gets."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.kubernetes import Event, Pod
from egpu_base.kubernetes import Client
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE_SECONDS = 60


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Cluster]:
    async with cluster(ClusterConfig(nodes=1, cards_per_node=2)) as one:
        async with one.client() as client:
            for each in (a_class("low", -10), a_class("high", 1000), a_class("polite", 1000, "Never")):
                await client.raw("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body=each)
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def client(running: Cluster) -> AsyncIterator[Client]:
    """Sees to it that the test leaves no pod and no budget."""
    async with running.client() as one:
        yield one
        for budget in (await one.raw("GET", f"{BUDGETS}"))["items"]:
            await one.raw("DELETE", f"{BUDGETS}/{budget['metadata']['name']}")
        for each in await one.list(Pod, namespace="default"):
            await one.delete(Pod, each.name, namespace="default", grace_period_seconds=0)

        async def gone() -> bool:
            return not await one.list(Pod, namespace="default")

        await until(gone, seconds=PATIENCE_SECONDS)


BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def a_class(name: str, value: int, policy: str = "PreemptLowerPriority") -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "preemptionPolicy": policy,
    }


def pod(name: str, core: int, priority: str = "", *, gang: int = 0, app: str = "", grace: int = 0) -> dict[str, Any]:
    limits = {names.GPU_CORE: core, names.GPU_MEMORY: 1024}
    command = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"] if grace else ["sleep", "1000"]
    container = {"name": "app", "image": "any", "command": command, "resources": {"limits": limits}}
    annotations = {names.GANG: name.partition("-")[0], names.GANG_SIZE: str(gang)} if gang else {}
    spec: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": grace}
    if priority:
        spec["priorityClassName"] = priority
    meta = {"name": name, "annotations": annotations, "labels": {"app": app} if app else {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


async def runs(client: Client, *wanted: str) -> None:
    async def running() -> bool:
        pods = {each.name: each for each in await client.list(Pod, namespace="default")}
        return all(name in pods and pods[name].status.phase == "Running" for name in wanted)

    await until(running, seconds=PATIENCE_SECONDS)


async def names_left(client: Client) -> set[str]:
    pods = await client.list(Pod, namespace="default")
    return {each.name for each in pods if each.metadata.deletion_timestamp is None}


async def card_of(client: Client, name: str) -> str:
    found = await client.get(Pod, name, namespace="default")
    return decode_allocation(found.annotations[names.ALLOCATION]).containers["app"].cards[0].uuid


async def said(client: Client, name: str, reason: str) -> str:
    """The newest event of the pod with that reason, waited for."""
    found: list[str] = []

    async def told() -> bool:
        events = await client.list(Event, namespace="default")
        found[:] = [one.message for one in events if (one.involved_object.name, one.reason) == (name, reason)]
        return bool(found)

    await until(told, seconds=PATIENCE_SECONDS)
    return found[-1]


async def test_the_cheapest_victim_of_all_cards_goes_though_the_sums_have_room(client: Client):
    await manifests.create(client, [pod("a", 60), pod("b", 60, "low")])
    await runs(client, "a", "b")
    card = await card_of(client, "b")
    await manifests.create(client, [pod("w", 60, "high")])
    await runs(client, "w")
    assert await names_left(client) == {"a", "w"}
    assert await card_of(client, "w") == card
    node = (await client.get(Pod, "w", namespace="default")).spec.node_name
    farewell = f"Preempted by default/w (priority 1000) on card {card} of node {node}"
    assert await said(client, "b", "Preempted") == farewell
    assert "default/b (priority -10)" in await said(client, "w", "Preempting")


async def test_what_is_freed_is_kept_while_a_victim_ends(client: Client):
    await manifests.create(client, [pod("stays", 60), pod("ends", 60, "low", grace=4)])
    await runs(client, "stays", "ends")
    await manifests.create(client, [pod("waits", 60, "high")])
    await said(client, "ends", "Preempted")
    assert (await client.get(Pod, "waits", namespace="default")).status.nominated_node_name
    await manifests.create(client, [pod("fits-beside", 40), pod("thief", 60)])
    await runs(client, "waits", "fits-beside")
    assert not (await client.get(Pod, "thief", namespace="default")).spec.node_name


async def test_a_budget_is_kept_and_another_pod_goes(client: Client):
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    await client.raw("POST", BUDGETS, body={"metadata": {"name": "web"}, "spec": spec})
    await manifests.create(client, [pod("alone", 60), pod("web", 60, "low", app="web")])
    await runs(client, "alone", "web")
    await manifests.create(client, [pod("first", 60, "high")])
    await runs(client, "first")
    assert await names_left(client) == {"web", "first"}
    await manifests.create(client, [pod("second", 60, "high")])
    await said(client, "second", "FailedScheduling")
    assert await names_left(client) == {"web", "first", "second"}


async def test_nobody_goes_for_a_pod_that_is_polite_or_no_more_important(client: Client):
    await manifests.create(client, [pod("one", 60), pod("two", 60)])
    await runs(client, "one", "two")
    await manifests.create(client, [pod("polite", 60, "polite"), pod("equal", 60)])
    for name in ("polite", "equal"):
        await said(client, name, "FailedScheduling")
    await manifests.create(client, [pod("rude", 60, "high")])
    await runs(client, "rude")
    assert len(await names_left(client) & {"one", "two"}) == 1


async def test_a_gang_goes_whole_and_a_gang_comes_whole(client: Client):
    await manifests.create(client, [pod("old-0", 60, "low", gang=2), pod("old-1", 60, "low", gang=2)])
    await runs(client, "old-0", "old-1")
    await manifests.create(client, [pod("new-0", 60, "high", gang=2), pod("new-1", 60, "high", gang=2)])
    await runs(client, "new-0", "new-1")
    assert await names_left(client) == {"new-0", "new-1"}
