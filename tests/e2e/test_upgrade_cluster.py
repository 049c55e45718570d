"""`egpu upgrade` while programs compute and pods come and go: no program is interrupted, and no pod is lost.

As in `test_install_cluster`: the components run as processes with what the command wrote. Each is replaced when the
command changes its workload, as Kubernetes' controllers do; shims are not (OnDelete). Each component is one process
here, so the webhook is away for a moment, and pods refused meanwhile are created again. With EGPU_KUBERNETES, which
needs root, the control plane is Kubernetes's own.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.test_install_cluster import Later, alone, command, offers, played
from egpu.apps.install import Objects
from egpu.apps.install.objects import KINDS
from egpu.laptop import manifests
from egpu.laptop.cluster import ClusterConfig
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.errors import AlreadyExists, ElasticGPUError, Unavailable
from egpu_base.kubernetes import Client
from egpu_sim.cluster import cluster as world
from support import programs
from support.commands import Place
from support.installing import NAMESPACE
from support.waiting import DEADLINE_SECONDS, until

NEXT = "registry.example/elastic-gpu:next"
WORKLOADS = {
    "elastic-gpu-controller": "controller",
    "elastic-gpu-webhook": "webhook",
    "elastic-gpu-scheduler": "extender",
    "elastic-gpu-agent": "agent-node-1",
}
"""The process of each workload that is replaced."""
VISIT = ["true"]
GAP_SECONDS = 0.5


async def new_workloads(client: Client) -> set[str]:
    """Return the workloads that have the new image."""
    return {
        one["metadata"]["name"]
        for kind in ("Deployment", "DaemonSet")
        for one in await Objects(client).all(KINDS[kind], namespace=NAMESPACE)
        if one["spec"]["template"]["spec"]["containers"][0]["image"] == NEXT
    }


async def roll_over(running: world.Cluster[Later], client: Client) -> None:
    """Replace the process of each workload once it is new."""
    left = dict(WORKLOADS)
    while left:
        for name in await new_workloads(client) & left.keys():
            await running.fleet.children[left.pop(name)].roll()
        await asyncio.sleep(0.1)


async def visit(client: Client, ended: Callable[[], bool]) -> list[str]:
    """Create bare pods with a slice, one after the other, and return their names."""
    visitors: list[str] = []
    while not ended():
        name = f"visitor-{len(visitors)}"
        pod = programs.pod(name, VISIT, restartPolicy="Never")

        async def created(pod: dict[str, object] = pod) -> bool:
            try:
                await manifests.create(client, [pod])
            except AlreadyExists:  # the answer to an earlier try was lost
                return True
            except ElasticGPUError as error:
                if "webhook" not in str(error) and not isinstance(error, Unavailable):
                    raise
                return False
            return True

        await until(created, f"{name} is admitted")
        visitors.append(name)
        await asyncio.sleep(GAP_SECONDS)
    return visitors


async def test_an_upgrade_under_load_interrupts_no_program_and_loses_no_pod(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = alone(ClusterConfig(nodes=1, cards_per_node=2), tmp_path, monkeypatch)
    async with world.started(config, Later(config)) as running, running.client() as client:
        await client.patch(Node, "node-1", {"metadata": {"labels": {"elasticgpu.io/node": "true"}}})
        async with played(running, client):
            code, said, errors = await command(place, running, "install", "--wait", "80", "--no-try")
            assert code == 0, (said, errors)
            await until(lambda: offers(client), "the node's amounts")
            await manifests.create(client, [programs.pod("steady", programs.SPIN)])
            await until(lambda: programs.computing(running) == 1, "the program computes")
            pids = {name: child.pid for name, child in running.fleet.children.items()}
            rolled = asyncio.create_task(roll_over(running, client))
            visiting = asyncio.create_task(visit(client, rolled.done))
            code, said, errors = await command(place, running, "upgrade", "--image", NEXT, "--wait", "80", "--no-try")
            assert code == 0, (said, errors)
            await asyncio.wait_for(rolled, DEADLINE_SECONDS)
            visitors = await visiting
            assert visitors
            assert await new_workloads(client) >= WORKLOADS.keys() | {"elastic-gpu-shim"}
            await until(lambda: programs.succeeded(client, visitors), "the visitors' success")
            now = {name: child.pid for name, child in running.fleet.children.items()}
            assert all(now[process] != pids[process] for process in WORKLOADS.values())
            assert now["shim-node-1"] == pids["shim-node-1"]
            before = programs.gpu_seconds(running)
            await until(lambda: programs.progress(before, programs.gpu_seconds(running)) >= 1, "it computes on")
            (status,) = (await client.get(Pod, "steady", namespace="default")).status.container_statuses or []
            assert status.restart_count == 0
            assert status.state is not None
            assert status.state.running is not None
