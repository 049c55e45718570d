"""`egpu install` and `egpu uninstall` on a simulated cluster that has nothing of ours.

No image is pulled here, so the manifests' workloads have no pods. The components run as processes instead, with the
accounts, roles, policies and definitions that the command wrote, and a player reports the workloads as ready.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from egpu.adapters.installation import installation, source
from egpu.apps.install import Deadline, Objects, trying
from egpu.apps.install.objects import KINDS, path_of
from egpu.core.offered import orphaned
from egpu.laptop import manifests
from egpu.laptop.cluster import ClusterConfig, Product
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.kubernetes import Client
from egpu_sim.cluster import cluster as world
from egpu_sim.cluster.processes import ChildSpec
from support.commands import Place
from support.installing import NAMESPACE, Bare, playing
from support.waiting import until

SIMULATED = ("elasticgpu.io/pod-logs", "elasticgpu.io/kubelet-socket")
"""Annotations of the simulated kubelet."""
ON_NODES = ("agent-", "shim-")
"""How the names of the DaemonSets' processes begin."""


class Later(Product):
    """The product's processes, started by the test and not with the cluster; nothing is installed for them."""

    def resolve_service(self, namespace: str, name: str, port: int) -> tuple[str, int] | None:
        return ("127.0.0.1", self._webhook) if name == "elastic-gpu-webhook" else None

    async def install(self, running: world.Cluster[Any], client: Client) -> None:
        """Nothing: the test does."""

    def specs(self, running: world.Cluster[Any]) -> list[ChildSpec]:
        return []

    def _node_specs(self, running: world.Cluster[Any], node: str) -> list[ChildSpec]:
        """Tell the agents which DaemonSet they belong to, as deploy/ does."""
        own = ("--daemon-set", f"{NAMESPACE}/elastic-gpu-agent")
        specs = super()._node_specs(running, node)
        return [replace(one, argv=(*one.argv, *own)) if one.name.startswith("agent-") else one for one in specs]

    async def missing(self, running: world.Cluster[Any], client: Client) -> tuple[str, str] | None:
        return None


def everything(running: world.Cluster[Later]) -> dict[str, list[str]]:
    """Names of all objects by kind, but for those that expire."""
    shelves = running.server.store.shelves()
    return {name: sorted("/".join(key) for key in shelf.items) for name, shelf in shelves
            if shelf.items and name not in ("events", "leases")}  # fmt: skip


def traces(node: Node) -> list[str]:
    """What of a node is ours. kubelet itself keeps the slots of a plugin that is gone, as 0."""
    amounts = {**(node.status.capacity or {}), **(node.status.allocatable or {})}
    named = [*amounts, *node.annotations, *(node.metadata.labels or {})]
    return [name for name in named if "elasticgpu.io" in name or name.startswith("nvidia.com/gpu.s")
            if name not in ("elasticgpu.io/slot", "elasticgpu.io/node", *SIMULATED)]  # fmt: skip


async def command(place: Place, running: world.Cluster[Later], *arguments: str) -> tuple[int, Any, str]:
    """An `egpu` command with JSON output: its exit code, the value, and stderr."""
    done = await asyncio.to_thread(place.run, *arguments, "-o", "json", KUBECONFIG=str(running.kubeconfig))
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


class NoControllers:
    """In place of Kubernetes' controllers, which would make pods for the workloads."""

    def __init__(self, client: Client) -> None:
        """Need nothing of it."""

    async def run(self) -> None:
        await asyncio.Event().wait()


async def test_a_cluster_is_as_before_after_installation_and_removal(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "Controllers", NoControllers)
    config = ClusterConfig(nodes=1, cards_per_node=1, cpu_nodes=1)
    async with world.started(config, Later(config)) as running, running.client() as client:
        await client.patch(Node, "node-1", {"metadata": {"labels": {"elasticgpu.io/node": "true"}}})
        before = everything(running)
        async with played(running, client):
            code, said, errors = await command(place, running, "install", "--wait", "80", "--no-try")
            assert code == 0, (said, errors)
            here = (sys.executable, "-c", trying.PROGRAM)  # our image has it as `python`
            (tried,) = await trying.trials(
                client, NAMESPACE, image="any", deadline=Deadline(80), progress=lambda _: None, command=here
            )
            assert tried.works, tried.said
            assert "0 wrong: ok" in tried.said
            assert "elasticgpu.io/gpu-core" in ((await client.get(Node, "node-1")).status.capacity or {})
            await manifests.create(client, manifests.read(manifests.examples() / "claim.yaml"))
            await until(lambda: succeeded(client), "the pod with the claim")
            code, said, errors = await command(place, running, "uninstall", "--yes", "--wait", "80")
        assert code == 0, (said, errors)
        assert "ElasticGPUClaim default/notebook" in said["removed"]
        assert not any("released by this command" in one for one in said["notes"]), "the controller did"
        await client.delete(Pod, "notebook", namespace="default", grace_period_seconds=0)
        assert everything(running) == before
        for name in ("node-1", "node-2"):
            assert traces(await client.get(Node, name)) == []


async def test_no_pod_that_asks_for_a_gpu_runs_after_everything_was_deleted_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `kubectl delete -k deploy/` does: rights and webhook go first, and nobody is left to clean up."""
    monkeypatch.setattr(world, "Controllers", NoControllers)
    config = ClusterConfig(nodes=1, cards_per_node=1)
    async with world.started(config, Later(config)) as running, running.client() as client:
        await client.patch(Node, "node-1", {"metadata": {"labels": {"elasticgpu.io/node": "true"}}})
        async with played(running, client) as ended:
            code, said, errors = await command(place, running, "install", "--wait", "80", "--no-try")
            assert code == 0, (said, errors)
            await until(lambda: offers(client), "the node's amounts")
            for document in installation(source(), namespace=NAMESPACE)[1:]:  # the namespace would take them at random
                await Objects(client).delete(path_of(document))
            await asyncio.wait_for(ended.wait(), 60)
        assert "elasticgpu.io/injection" in (await client.get(Node, "node-1")).annotations, (
            "the agent had no right left to change the node"
        )
        await until(lambda: offers_nothing(client), "kubelet's amounts of 0")
        limits = {"elasticgpu.io/gpu-core": 10}
        for name, node in (("scheduled", {}), ("placed", {"nodeName": "node-1"})):
            container = {"name": "asks", "image": "any", "command": ["true"], "resources": {"limits": limits}}
            spec = {"restartPolicy": "Never", "containers": [container], **node}
            await manifests.create(
                client, [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}]
            )
        await until(lambda: refused(client), "the pods' refusals")


async def offers(client: Client) -> bool:
    return "elasticgpu.io/gpu-core" in ((await client.get(Node, "node-1")).status.allocatable or {})


async def offers_nothing(client: Client) -> bool:
    return not orphaned((await client.get(Node, "node-1")).status.allocatable)


async def refused(client: Client) -> bool:
    scheduled, placed = [await client.get(Pod, name, namespace="default") for name in ("scheduled", "placed")]
    assert scheduled.status.phase == "Pending"
    assert placed.status.phase in ("", "Pending", "Failed"), placed.status
    waits = any(one.reason == "Unschedulable" for one in scheduled.status.conditions or [])
    return waits and placed.status.phase == "Failed"


@contextlib.asynccontextmanager
async def played(running: world.Cluster[Later], client: Client) -> AsyncGenerator[asyncio.Event]:
    """Start the components' processes as soon as Deployments are written, and end agents with their DaemonSet. Yield an
    event for the end of their processes."""
    objects, ended = Objects(client), asyncio.Event()

    async def workloads(kind: str) -> int:
        return len(await objects.all(KINDS[kind], namespace=NAMESPACE))

    async def gone(kind: str) -> bool:
        return not await workloads(kind)

    async def play() -> None:
        await until(lambda: workloads("Deployment"), "the Deployments")
        specs = Product.specs(running.components, running)
        await running.fleet.start([one for one in specs if not one.name.startswith(ON_NODES)])
        await until(lambda: workloads("DaemonSet"), "the DaemonSets")  # which an agent asks about as soon as it starts
        await running.fleet.start([one for one in specs if one.name.startswith(ON_NODES)])
        await until(lambda: gone("DaemonSet"), "the end of the DaemonSets")
        await running.fleet.stop([name for name in running.fleet.children if name.startswith(ON_NODES)])
        ended.set()

    async with playing(Bare(client, running.server), trusting=False):
        task = asyncio.create_task(play())
        try:
            yield ended
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def succeeded(client: Client) -> bool:
    return (await client.get(Pod, "notebook", namespace="default")).status.phase == "Succeeded"
