"""PodGroups of scheduler-plugins with their own controller. Its scheduler is not needed: the extender places gangs."""

from pathlib import Path
from typing import Any

import pytest

from egpu.api import names
from egpu.laptop.cluster import Cluster
from egpu_base.kubernetes import Client
from support.neighbour_programs import Json, Neighbour
from support.pod_groups import CARDS, NODES, given, gone, pods_of
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
ARGUMENTS = ("--metricsAddr=0", "--probeAddr={health}")
PLUGINS = Neighbour("scheduler-plugins", arguments=ARGUMENTS)
GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
SETS = "/apis/apps/v1/namespaces/default/replicasets"
LABEL = "scheduling.x-k8s.io/pod-group=nginx"
ALL = NODES * CARDS


async def make(client: Client, *, least: int) -> None:
    """The documentation's demo, with whole cards: six pods, of which `least` have to start at once."""
    documents: dict[str, Json] = {one["kind"]: one for one in PLUGINS.example("demo.yaml")}
    documents["PodGroup"]["spec"]["minMember"] = least
    spec = documents["ReplicaSet"]["spec"]["template"]["spec"]
    spec["terminationGracePeriodSeconds"] = 0
    container = {"command": ["sleep", "1000"], "resources": {"limits": {names.GPU_CORE: "100"}}}
    spec["containers"][0] |= container
    await client.raw("POST", GROUPS, body=documents["PodGroup"])
    await client.raw("POST", SETS, body=documents["ReplicaSet"])


async def remove(client: Client) -> None:
    await client.raw("DELETE", f"{SETS}/nginx", params={"propagationPolicy": "Background"})
    await gone(client, LABEL)
    await client.raw("DELETE", f"{GROUPS}/nginx")


async def placed(client: Client) -> int:
    return sum(bool(pod.spec.node_name) for pod in await pods_of(client, LABEL))


async def test_the_documented_demo_fills_the_cluster(running: Cluster, client: Client, tmp_path: Path):
    """Three of six pods must start at once, and there is room for four: four run, two wait."""
    async with PLUGINS.running(running, client, tmp_path):
        await make(client, least=3)

        async def full() -> bool:
            return await placed(client) == ALL

        await until(full, seconds=120)
        pods = await pods_of(client, LABEL)
        assert {pod.annotations[names.GANG_SIZE] for pod in pods} == {"3+"}
        assert list(given(pods).values()) == [100] * ALL

        async def counted() -> bool:
            found: Any = await client.raw("GET", f"{GROUPS}/nginx")
            return found.get("status", {}).get("running") == ALL

        await until(counted, "the controller counts the running members", seconds=120)
        await remove(client)


async def test_a_group_larger_than_the_cluster_holds_nothing(running: Cluster, client: Client, tmp_path: Path):
    async with PLUGINS.running(running, client, tmp_path):
        await make(client, least=ALL + 1)

        async def told() -> bool:
            pods = await pods_of(client, LABEL)
            messages = [
                one.message for pod in pods for one in pod.status.conditions or () if one.type == "PodScheduled"
            ]
            return any(f"all {ALL + 1} members exist, {ALL} fit at once" in message for message in messages)

        await until(told, seconds=120)
        assert await placed(client) == 0
        await remove(client)
