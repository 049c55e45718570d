"""MPI operator with its own controller: workers with slices, and a launcher without a GPU.

The program serves its probe on a port of its own choice (8080)."""

from pathlib import Path

import pytest

from egpu.api import names
from egpu.laptop.cluster import Cluster
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from support.neighbour_programs import Json, Neighbour, Probe
from support.pod_groups import given, gone, pods_of, run, waits
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
MPI = Neighbour("mpi-operator", arguments=("-lock-namespace=default",), probe=Probe("/healthz", port=8080))
PATH = "/apis/kubeflow.org/v2beta1/namespaces/default/mpijobs"
LABEL = "training.kubeflow.org/job-name=pi"
LAUNCHER = "training.kubeflow.org/job-role=launcher"


def sliced(*, workers: int, core: int, gang: bool = False) -> Json:
    """The documentation's example, with a slice for each worker, and programs that simulated nodes have."""
    (job,) = MPI.example("pi.yaml")
    job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = workers
    for role, replicas in job["spec"]["mpiReplicaSpecs"].items():
        template = replicas["template"]
        if gang:
            template["metadata"] = {"annotations": {names.GANG_FROM: names.GANG_FROM_OWNER}}
        template["spec"]["terminationGracePeriodSeconds"] = 0
        (container,) = template["spec"]["containers"]
        container |= {"command": ["sleep", "1000"], "args": [], "resources": {"limits": {"cpu": "100m"}}}
        if role == "Worker":
            container["resources"]["limits"][names.GPU_CORE] = str(core)
        else:  # what mpirun reads
            container |= {"command": ["sh", "-c"], "args": ['cat "$OMPI_MCA_orte_default_hostfile"; sleep 1000']}
    return job


async def launcher(client: Client) -> Pod:
    (pod,) = await pods_of(client, f"{LABEL},{LAUNCHER}")
    return pod


async def deleted(client: Client) -> None:
    await client.raw("DELETE", f"{PATH}/pi", params={"propagationPolicy": "Foreground"})
    await gone(client, LABEL)


async def test_the_documented_example_runs_in_slices(running: Cluster, client: Client, tmp_path: Path):
    async with MPI.running(running, client, tmp_path):
        await client.raw("POST", PATH, body=sliced(workers=2, core=50))
        pods = await run(client, LABEL, 3)
        assert not any(names.GANG in pod.annotations for pod in pods)
        assert sum(given(pods).values()) == 2 * 50
        one = await launcher(client)
        assert names.ALLOCATION not in one.annotations
        variables = {variable.name: variable.value for variable in one.containers[0].env or ()}
        assert not variables[names.NVIDIA_VISIBLE_DEVICES], "the operator hides all cards from the launcher"

        async def hosts() -> bool:
            text = await client.text(f"/api/v1/namespaces/default/pods/{one.name}/log")
            return all(f"pi-worker-{number}.pi.default.svc slots=1" in text for number in range(2))

        await until(hosts, "the launcher reads the names of the workers", seconds=120)
        await deleted(client)


async def test_on_wish_launcher_and_workers_start_at_once(running: Cluster, client: Client, tmp_path: Path):
    async with MPI.running(running, client, tmp_path):
        await client.raw("POST", PATH, body=sliced(workers=4, core=100, gang=True))
        pods = await run(client, LABEL, 5)
        assert sorted(pod.annotations.get(names.GANG_SIZE, "") for pod in pods) == ["", *["5+"] * 4]
        assert list(given(pods).values()) == [100] * 4
        await deleted(client)


async def test_a_job_with_min_available_and_no_room_holds_nothing(running: Cluster, client: Client, tmp_path: Path):
    """The launcher, which has no card, counts as well."""
    async with MPI.running(running, client, tmp_path):
        body = sliced(workers=5, core=100)
        body["spec"]["runPolicy"]["schedulingPolicy"] = {"minAvailable": 6}
        await client.raw("POST", PATH, body=body)
        await waits(client, LABEL, "gang mpijob.pi: all 6 members exist, 4 fit at once")
        assert [
            pod.name for pod in await pods_of(client, LABEL) if pod.spec.node_name and names.GANG in pod.annotations
        ] == []
        await deleted(client)
