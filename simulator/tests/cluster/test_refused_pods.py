"""Pods that the API server refuses, by the simulated controllers: where this is seen, and when they try again."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from egpu_base.api.kubernetes import Event, Node, ObjectMeta, Pod
from egpu_base.kubernetes import Client
from egpu_sim.cluster.apiserver import Config, serve
from egpu_sim.cluster.controllers import Controllers
from egpu_sim.cluster.controllers.kinds import DaemonSet, Job, ReplicaSet, StatefulSet
from support.waiting import until

APP = {"matchLabels": {"app": "a"}}
POD = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "a", "image": "i"}]}}
ONCE = {**POD, "spec": {**POD["spec"], "restartPolicy": "Never"}}
WORKLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "apps/v1/namespaces/default/deployments": ("deployment", {"selector": APP, "template": POD, "replicas": 20}),
    "apps/v1/namespaces/default/daemonsets": ("daemon", {"selector": APP, "template": POD}),
    "apps/v1/namespaces/default/statefulsets": ("stateful", {"selector": APP, "template": POD, "serviceName": "s"}),
    "batch/v1/namespaces/default/jobs": ("job", {"template": ONCE, "parallelism": 5, "completions": 5}),
}
QUOTA = "/api/v1/namespaces/default/resourcequotas"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[Client]:
    """A cluster of one node, with a quota that allows no pod."""
    async with serve(Config(tmp_path)) as handle, Client.from_kubeconfig(handle.kubeconfig) as one:
        await one.create(Node, Node(metadata=ObjectMeta(name="node-1")))
        await one.raw("POST", QUOTA, body={"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
        running = asyncio.create_task(Controllers(one).run())
        yield one
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def refusals(client: Client) -> list[Event]:
    return [event for event in await client.list(Event, namespace="default") if event.reason == "FailedCreate"]


async def make_all(client: Client) -> None:
    for path, (name, spec) in WORKLOADS.items():
        await client.raw("POST", f"/apis/{path}", body={"metadata": {"name": name}, "spec": spec})


async def test_each_owner_has_one_event_that_counts(client: Client) -> None:
    await make_all(client)

    async def tried_again() -> list[Event]:
        found = await refusals(client)
        return found if len(found) >= 4 and all(event.count >= 2 for event in found) else []

    found = await until(tried_again, "each was tried twice")
    assert Counter(event.involved_object.kind for event in found) == Counter(
        ("ReplicaSet", "DaemonSet", "StatefulSet", "Job")
    )
    assert all("exceeded quota: none" in event.message for event in found)


async def test_the_status_says_what_is_wanted_and_stays_as_it_is(client: Client) -> None:
    await make_all(client)
    daemons = await until(
        lambda: told(client, DaemonSet, "daemon", "desiredNumberScheduled"), "the daemon set's status"
    )
    assert daemons.status["desiredNumberScheduled"] == 1
    sets = await client.list(ReplicaSet, namespace="default")
    owner = await until(lambda: told(client, ReplicaSet, sets[0].name, "conditions"), "the replica set's condition")
    (condition,) = owner.status["conditions"]
    assert (condition["type"], condition["reason"]) == ("ReplicaFailure", "FailedCreate")

    async def tried_again() -> bool:
        return any(one.count >= 2 and one.involved_object.kind == "ReplicaSet" for one in await refusals(client))

    await until(tried_again, "it was tried again, with another random name")
    later = await client.get(ReplicaSet, owner.name, namespace="default")
    assert later.metadata.resource_version == owner.metadata.resource_version


async def told(client: Client, kind: type[Any], name: str, field: str) -> Any:
    found = await client.get(kind, name, namespace="default")
    return found if found.status.get(field) else None


async def test_pods_are_made_once_they_are_allowed(client: Client) -> None:
    await make_all(client)
    await until(lambda: refused_all(client), "each was refused")
    await client.raw("DELETE", f"{QUOTA}/none")

    async def made() -> bool:
        pods = await client.list(Pod, namespace="default")
        kinds = Counter(owner.kind for pod in pods for owner in pod.metadata.owner_references or [])
        return kinds == Counter({"ReplicaSet": 20, "DaemonSet": 1, "StatefulSet": 1, "Job": 5})

    await until(made)
    for kind, name in ((StatefulSet, "stateful"), (Job, "job")):
        assert (await client.get(kind, name, namespace="default")).uid


async def refused_all(client: Client) -> bool:
    return len(await refusals(client)) >= 4


async def test_a_changed_owner_is_tried_at_once(client: Client) -> None:
    path = "/apis/apps/v1/namespaces/default/statefulsets"
    await client.raw("POST", path, body={"metadata": {"name": "stateful"}, "spec": WORKLOADS[path[6:]][1]})
    await until(lambda: refusals(client), "it was refused")
    template = {"metadata": {"annotations": {"again": "1"}}}
    await client.patch(StatefulSet, "stateful", {"spec": {"template": template}}, namespace="default")

    async def again() -> bool:
        return any(event.count >= 2 for event in await refusals(client))

    await until(again)
