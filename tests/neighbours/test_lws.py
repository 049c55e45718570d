"""LeaderWorkerSet with its own controller: each group of a leader and its workers is a gang."""

from pathlib import Path
from typing import Any

import pytest

from egpu.api import names
from egpu.laptop.cluster import Cluster
from egpu_base.kubernetes import Client
from support.neighbour_programs import Neighbour
from support.pod_groups import given, gone, pods_of, run
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
LWS = Neighbour("lws", "config.lws.x-k8s.io/v1alpha1")
PATH = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets"
LABEL = "leaderworkerset.sigs.k8s.io/name=leaderworkerset-sample"


def sliced(*, replicas: int, size: int, core: int) -> dict[str, Any]:
    """The documentation's example, with a slice for each pod and a program that simulated nodes have."""
    (body,) = LWS.example("lws.yaml")
    body["spec"]["replicas"] = replicas
    template = body["spec"]["leaderWorkerTemplate"]
    template["size"] = size
    pod = template["workerTemplate"]["spec"]
    pod["terminationGracePeriodSeconds"] = 0
    pod["containers"][0] |= {"command": ["sleep", "1000"], "resources": {"limits": {names.GPU_CORE: str(core)}}}
    return body


async def test_the_documented_example_runs_in_slices(running: Cluster, client: Client, tmp_path: Path):
    async with LWS.running(running, client, tmp_path):
        await client.raw("POST", PATH, body=sliced(replicas=3, size=4, core=30))
        pods = await run(client, LABEL, 12)
        gangs = sorted({(pod.annotations[names.GANG], pod.annotations[names.GANG_SIZE]) for pod in pods})
        assert gangs == [(f"lws.leaderworkerset-sample.{index}", "4+") for index in range(3)]
        assert sum(given(pods).values()) == 12 * 30
        await client.raw("DELETE", f"{PATH}/leaderworkerset-sample")
        await gone(client, LABEL)


async def test_a_group_without_room_waits_as_a_whole(running: Cluster, client: Client, tmp_path: Path):
    """Two groups of three whole cards on four cards: one runs, the other holds nothing."""
    async with LWS.running(running, client, tmp_path):
        await client.raw("POST", PATH, body=sliced(replicas=2, size=3, core=100))

        async def waits() -> bool:
            pods = await pods_of(client, LABEL)
            told = [one.message for pod in pods for one in pod.status.conditions or () if one.type == "PodScheduled"]
            return len(pods) == 6 and any("all 3 members exist, 1 fit at once" in one for one in told)

        await until(waits, seconds=120)
        placed = [pod.annotations[names.GANG] for pod in await pods_of(client, LABEL) if pod.spec.node_name]
        assert len(placed) == 3
        assert len(set(placed)) == 1
        await client.raw("DELETE", f"{PATH}/leaderworkerset-sample")
        await gone(client, LABEL)
