"""KubeRay with its own operator: the pods of a RayCluster one by one, or all at once on wish."""

from pathlib import Path

import pytest

from egpu.api import names
from egpu.laptop.cluster import Cluster
from egpu_base.kubernetes import Client
from support.neighbour_programs import Json, Neighbour, of_page
from support.pod_groups import given, gone, run

pytestmark = pytest.mark.asyncio(loop_scope="package")
ARGUMENTS = ("--metrics-addr=127.0.0.1:0", "--health-probe-bind-address={health}", "--enable-leader-election=false")
KUBERAY = Neighbour("kuberay", arguments=ARGUMENTS)
PATH = "/apis/ray.io/v1/namespaces/default/rayclusters"
LABEL = "ray.io/cluster=slices"


def sliced(*, workers: int = 0, core: int = 0, gang: bool = False) -> Json:
    """The page's example, with another number of workers and other slices on wish. Simulated nodes do not have Ray, so
    another program runs in its place."""
    (cluster,), (documented,) = of_page("kuberay"), KUBERAY.example("ray-cluster.sample.yaml")
    assert cluster["apiVersion"] == documented["apiVersion"]
    # With this annotation the operator leaves the command alone.
    cluster["metadata"]["annotations"] = {"ray.io/overwrite-container-cmd": "true"}
    (group,) = cluster["spec"]["workerGroupSpecs"]
    if workers:
        group |= {"replicas": workers, "minReplicas": workers, "maxReplicas": workers}
    for each in (cluster["spec"]["headGroupSpec"], group):
        template = each["template"]
        if gang:
            template["metadata"] = {"annotations": {names.GANG_FROM: names.GANG_FROM_OWNER}}
        template["spec"]["terminationGracePeriodSeconds"] = 0
        (container,) = template["spec"]["containers"]
        container |= {"command": ["sleep", "1000"], "args": []}
    if core:
        container["resources"]["limits"] |= {names.GPU_CORE: str(core), names.GPU_MEMORY: "8192"}
    return cluster


async def deleted(client: Client) -> None:
    await client.raw("DELETE", f"{PATH}/slices", params={"propagationPolicy": "Foreground"})
    await gone(client, LABEL)


async def test_the_example_of_the_page_runs_in_slices(running: Cluster, client: Client, tmp_path: Path):
    async with KUBERAY.running(running, client, tmp_path):
        await client.raw("POST", PATH, body=sliced())
        pods = await run(client, LABEL, 4)
        assert not any(names.GANG in pod.annotations for pod in pods)
        assert sum(given(pods).values()) == 3 * 50
        shm = [volume for pod in pods for volume in pod.spec.volumes or () if volume["name"] == "shared-mem"]
        assert all(volume["emptyDir"]["medium"] == "Memory" for volume in shm)
        await deleted(client)


async def test_on_wish_head_and_workers_start_at_once(running: Cluster, client: Client, tmp_path: Path):
    async with KUBERAY.running(running, client, tmp_path):
        await client.raw("POST", PATH, body=sliced(workers=4, core=100, gang=True))
        pods = await run(client, LABEL, 5)
        assert sorted(pod.annotations.get(names.GANG_SIZE, "") for pod in pods) == ["", *["5+"] * 4]
        assert list(given(pods).values()) == [100] * 4
        await deleted(client)
