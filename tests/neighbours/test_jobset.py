"""JobSet with its own controller: pods one by one by default, all at once on wish."""

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
JOBSET = Neighbour("jobset", "config.jobset.x-k8s.io/v1alpha1")
PATH = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
LABEL = "jobset.sigs.k8s.io/jobset-name=paralleljobs"


def sliced(*, core: int, gang: bool = False) -> dict[str, Any]:
    """The documentation's example: four workers, which get a slice each, and a driver without a GPU."""
    (body,) = JOBSET.example("paralleljobs.yaml")
    for job in body["spec"]["replicatedJobs"]:
        template = job["template"]["spec"]["template"]
        if gang:
            template["metadata"] = {"annotations": {names.GANG_FROM: names.GANG_FROM_OWNER}}
        template["spec"]["terminationGracePeriodSeconds"] = 0
        if job["name"] == "workers":
            template["spec"]["containers"][0]["resources"] = {"limits": {names.GPU_CORE: str(core)}}
    return body


async def deleted(client: Client) -> None:
    await client.raw("DELETE", f"{PATH}/paralleljobs", params={"propagationPolicy": "Foreground"})
    await gone(client, LABEL)


async def test_the_documented_example_runs_in_slices(running: Cluster, client: Client, tmp_path: Path):
    async with JOBSET.running(running, client, tmp_path):
        await client.raw("POST", PATH, body=sliced(core=50))
        pods = await run(client, LABEL, 5)
        assert not any(names.GANG in pod.annotations for pod in pods)
        assert sum(given(pods).values()) == 4 * 50
        await deleted(client)


async def test_on_wish_all_pods_start_at_once_and_the_driver_counts(running: Cluster, client: Client, tmp_path: Path):
    async with JOBSET.running(running, client, tmp_path):
        await client.raw("POST", PATH, body=sliced(core=100, gang=True))
        pods = await run(client, LABEL, 5)
        assert sorted(pod.annotations.get(names.GANG_SIZE, "") for pod in pods) == ["", *["5+"] * 4]
        assert list(given(pods).values()) == [100] * 4
        await deleted(client)


async def test_on_wish_a_set_without_room_for_all_holds_nothing(running: Cluster, client: Client, tmp_path: Path):
    async with JOBSET.running(running, client, tmp_path):
        body = sliced(core=100, gang=True)
        workers = body["spec"]["replicatedJobs"][0]["template"]["spec"]
        workers["parallelism"] = workers["completions"] = 5
        await client.raw("POST", PATH, body=body)

        async def told() -> bool:
            pods = await pods_of(client, LABEL)
            messages = [
                one.message for pod in pods for one in pod.status.conditions or () if one.type == "PodScheduled"
            ]
            return any("gang jobset.paralleljobs: all 6 members exist" in one for one in messages)

        await until(told, seconds=120)
        pods = await pods_of(client, LABEL)
        assert [pod.name for pod in pods if pod.spec.node_name and names.GANG in pod.annotations] == []
        await deleted(client)


async def test_a_set_that_starts_in_order_cannot_be_a_gang(running: Cluster, client: Client, tmp_path: Path):
    async with JOBSET.running(running, client, tmp_path):
        body = sliced(core=50, gang=True)
        body["spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
        await client.raw("POST", PATH, body=body)

        async def refused() -> bool:
            events: Any = await client.raw("GET", "/api/v1/namespaces/default/events")
            return any("starts its Jobs in order" in one["message"] for one in events["items"])

        await until(refused, seconds=120)
        await deleted(client)
