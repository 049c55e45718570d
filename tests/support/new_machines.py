"""What tests with autoscalers look at. Their providers make Node objects in place of machines: nothing runs there."""

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from egpu.api import names
from egpu_base.api.kubernetes import Event, Node, Pod
from egpu_base.kubernetes import Client
from support.pod_groups import CARDS, NODES, gone, run

PODS = "/api/v1/namespaces/default/pods"
LARGEST_MIB = 81920
SLICES: Mapping[str, str] = {
    names.GPU: "2",
    names.GPU_CORE: "200",
    names.GPU_MEMORY: str(2 * LARGEST_MIB),
    names.SLOT: "96",
}
"""The names of a new node with two cards, as the page of autoscalers says."""


async def make(client: Client, name: str, core: int, *, group: str, **spec: Any) -> None:
    """Make a pod that wants so many percent of a card."""
    resources = {"limits": {names.GPU_CORE: str(core)}}
    container = {"name": "app", "image": "any", "command": ["sleep", "1000"], "resources": resources}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"group": group}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container], **spec},
    }
    await client.raw("POST", PODS, body=body)


@contextlib.asynccontextmanager
async def filled(client: Client) -> AsyncGenerator[None]:
    """Give 60 % of each card away: 80 % of each node are free, and 40 % of each card. All pods go in the end."""
    try:
        for number in range(NODES * CARDS):
            await make(client, f"full-{number}", 60, group="full")
        await run(client, "group=full", NODES * CARDS)
        yield
    finally:
        await remove(client)


async def remove(client: Client, group: str = "") -> None:
    """Remove the pods of a group, or of all."""
    labels = f"group={group}" if group else "group"
    for pod in await client.list(Pod, namespace="default", labels=labels):
        await client.delete(Pod, pod.name, namespace="default", grace_period_seconds=0)
    await gone(client, labels)


async def events(client: Client, pod: str, reason: str) -> list[str]:
    """Return what the events of the pod with this reason say."""
    found = await client.list(Event, namespace="default")
    return [one.message for one in found if one.involved_object.name == pod and one.reason == reason]


async def made(client: Client, label: str) -> list[str]:
    """Return the names of the nodes with this label."""
    return [node.name for node in await client.list(Node, labels=label)]
