"""Kubeflow's training operator with its own controller: a PyTorchJob in slices, one by one or all at once."""

import sys
from pathlib import Path

import pytest

from egpu.api import names
from egpu.laptop.cluster import Cluster
from egpu_base.kubernetes import Client
from support.neighbour_programs import Json, Neighbour
from support.pod_groups import given, gone, pods_of, run, waits
from support.probed_servers import SCRIPT, said

pytestmark = pytest.mark.asyncio(loop_scope="package")
ARGUMENTS = (
    "--metrics-bind-address=0",
    "--health-probe-bind-address={health}",
    "--webhook-server-port={port}",
    "--webhook-cert-dir={pki}",
)
TRAINING = Neighbour("training-operator", arguments=ARGUMENTS)
PATH = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
LABEL = "training.kubeflow.org/job-name=pytorch-simple"


def sliced(*, workers: int, core: int) -> Json:
    """The documentation's example, with a slice for each process, and a program that says its variables."""
    (job,) = TRAINING.example("simple.yaml")
    job["metadata"].pop("namespace")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    replicas["Worker"]["replicas"] = workers
    for role in replicas.values():
        spec = role["template"]["spec"]
        spec["terminationGracePeriodSeconds"] = 0
        (container,) = spec["containers"]
        container |= {"command": [sys.executable, "-c", SCRIPT], "resources": {"limits": {names.GPU_CORE: str(core)}}}
    return job


def at_once(*, workers: int) -> Json:
    """A master and workers with whole cards, of which none may start alone."""
    job = sliced(workers=workers, core=100)
    job["spec"]["runPolicy"] = {"schedulingPolicy": {"minAvailable": workers + 1}}
    return job


async def deleted(client: Client) -> None:
    await client.raw("DELETE", f"{PATH}/pytorch-simple", params={"propagationPolicy": "Foreground"})
    await gone(client, LABEL)


async def test_the_documented_example_runs_in_slices(running: Cluster, client: Client, tmp_path: Path):
    async with TRAINING.running(running, client, tmp_path):
        await client.raw("POST", PATH, body=sliced(workers=1, core=30))
        pods = await run(client, LABEL, 2)
        assert not any(names.GANG in pod.annotations for pod in pods)
        assert sum(given(pods).values()) == 2 * 30
        for pod, rank in zip(sorted(pods, key=lambda one: one.name), ("0", "1"), strict=True):
            (card,), variables, _ = await said(client, pod.name, "pytorch")
            assert (variables["RANK"], variables["WORLD_SIZE"]) == (rank, "2")
            assert [variables["NVIDIA_VISIBLE_DEVICES"]] == [card["uuid"]] == list(given([pod]))
        await deleted(client)


async def test_a_job_with_min_available_starts_at_once(running: Cluster, client: Client, tmp_path: Path):
    async with TRAINING.running(running, client, tmp_path):
        await client.raw("POST", PATH, body=at_once(workers=3))
        pods = await run(client, LABEL, 4)
        assert {pod.annotations[names.GANG_SIZE] for pod in pods} == {"4+"}
        assert list(given(pods).values()) == [100] * 4
        await deleted(client)


async def test_a_job_with_min_available_and_no_room_holds_nothing(running: Cluster, client: Client, tmp_path: Path):
    async with TRAINING.running(running, client, tmp_path):
        await client.raw("POST", PATH, body=at_once(workers=4))
        await waits(client, LABEL, "gang pytorchjob.pytorch-simple: all 5 members exist, 4 fit at once")
        assert not any(pod.spec.node_name for pod in await pods_of(client, LABEL))
        await deleted(client)
