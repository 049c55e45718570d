"""What tests with several pods on a cluster look at."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from support.waiting import until

SECONDS = 120
NODES, CARDS = 2, 2
"""Nodes of the cluster beside the neighbours, and cards of each."""


async def pods_of(client: Client, labels: str) -> Sequence[Pod]:
    """Return the pods with these labels in the namespace default."""
    return await client.list(Pod, namespace="default", labels=labels)


async def run(client: Client, labels: str, count: int) -> Sequence[Pod]:
    """Wait until so many pods run, and return them."""

    async def all_run() -> bool:
        return [pod.status.phase for pod in await pods_of(client, labels)] == ["Running"] * count

    async def said() -> Any:
        return [(pod.name, pod.status.phase, pod.status.conditions) for pod in await pods_of(client, labels)]

    try:
        await until(all_run, seconds=SECONDS)
    except AssertionError as error:
        raise AssertionError(await said()) from error
    return await pods_of(client, labels)


def given(pods: Sequence[Pod]) -> Counter[str]:
    """Return the percent of each card that these pods hold."""
    found = Counter[str]()
    for pod in pods:
        if text := pod.annotations.get(names.ALLOCATION):
            for container in decode_allocation(text).containers.values():
                for share in container.cards:
                    found[share.uuid] += 100 if container.exclusive else share.core
    return found


async def gone(client: Client, labels: str) -> None:
    """Wait until no pod has these labels."""

    async def none_left() -> bool:
        return not await pods_of(client, labels)

    await until(none_left, seconds=SECONDS)


async def waits(client: Client, labels: str, because: str) -> None:
    """Wait until kube-scheduler says this of one of these pods."""

    async def told() -> bool:
        pods = await pods_of(client, labels)
        said = [one.message for pod in pods for one in pod.status.conditions or () if one.type == "PodScheduled"]
        return any(because in message for message in said)

    await until(told, because, seconds=SECONDS)
