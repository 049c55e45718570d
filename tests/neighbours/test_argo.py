"""Argo Workflows with its own controller: a step has its slice, and its retry has one of its own."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.laptop.cluster import Cluster
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from support.lost_answers import removed
from support.neighbour_programs import Json, Neighbour, Probe, of_page
from support.pod_groups import given, gone, pods_of
from support.probed_servers import SCRIPT, said
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
ARGUMENTS = ("--kubeconfig={kubeconfig}", "--namespaced", "--executor-image=any")
ARGO = Neighbour("argo", arguments=ARGUMENTS, probe=Probe("/healthz", 6060))
PATH = "/apis/argoproj.io/v1alpha1/namespaces/default/workflows"
MAPS = "/api/v1/namespaces/default/configmaps"
SETTINGS = "workflow-controller-configmap"
LABEL = "workflows.argoproj.io/workflow=slice"


@pytest_asyncio.fixture(loop_scope="package")
async def settings(client: Client) -> AsyncIterator[None]:
    """The controller's configuration: no port for metrics."""
    data = {"metricsConfig": yaml.safe_dump({"enabled": False})}
    await client.raw("POST", MAPS, body={"metadata": {"name": SETTINGS}, "data": data})
    yield
    await removed(client, f"{MAPS}/{SETTINGS}")


def sliced() -> Json:
    """The page's example. Simulated nodes have no images, so a probe runs in place of the program, and nothing in place
    of Argo's own containers."""
    (workflow,), (documented,) = of_page("argo"), ARGO.example("hello-world.yaml")
    assert workflow["apiVersion"] == documented["apiVersion"]
    patch = {
        "terminationGracePeriodSeconds": 0,
        "initContainers": [{"name": "init", "command": ["true"]}],
        "containers": [
            {"name": "wait", "command": ["sleep", "1000"]},
            {"name": "main", "command": [sys.executable, "-c", SCRIPT]},
        ],
    }
    workflow["spec"]["podSpecPatch"] = yaml.safe_dump(patch)
    return workflow


async def the_step(client: Client, *, beside: str = "") -> Pod:
    """Wait for the running pod of the step, other than the one `beside`."""

    async def running() -> Pod | None:
        pods = [pod for pod in await pods_of(client, LABEL) if pod.name != beside and pod.status.phase == "Running"]
        return pods[0] if pods else None

    async def pods() -> Any:
        found: Any = await client.raw("GET", f"{PATH}/slice")
        return [(one.name, one.status.phase) for one in await pods_of(client, LABEL)], found.get("status")

    try:
        return await until(running, seconds=120)
    except AssertionError as error:
        raise AssertionError(await pods()) from error


async def test_a_step_and_its_retry_have_a_slice_each(running: Cluster, client: Client, settings: None, tmp_path: Path):
    async with ARGO.running(running, client, tmp_path):
        await client.raw("POST", PATH, body=sliced())
        first = await the_step(client)
        assert list(decode_allocation(first.annotations[names.ALLOCATION]).containers) == ["main"]
        assert list(given([first]).values()) == [30]
        (card,), variables, _ = await said(client, first.name, "main")
        assert (card["uuid"], card["total_mib"]) == (next(iter(given([first]))), 4096)
        assert variables["NVIDIA_VISIBLE_DEVICES"] == card["uuid"]
        assert variables["ARGO_CONTAINER_NAME"] == "main"
        await client.delete(Pod, first.name, namespace="default", grace_period_seconds=0)
        second = await the_step(client, beside=first.name)
        assert list(given([second]).values()) == [30]
        await removed(client, f"{PATH}/slice")
        await gone(client, LABEL)
