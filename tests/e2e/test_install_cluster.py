"""`egpu install` and `egpu uninstall` on a simulated cluster that has nothing of ours.

No image is pulled here, so the manifests' workloads have no pods. The components run as processes instead, with the
accounts, roles, policies and definitions that the command wrote, and a player reports the workloads as ready. With
EGPU_KUBERNETES, which needs root, the control plane is Kubernetes's own.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from egpu.adapters.installation import installation, source
from egpu.apps.install import Deadline, Objects, trying
from egpu.apps.install.objects import KINDS, path_of
from egpu.core.offered import orphaned
from egpu.laptop import manifests
from egpu.laptop.cluster import ClusterConfig, Product
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.errors import Refused
from egpu_base.kubernetes import Client
from egpu_sim.cluster import cluster as world
from egpu_sim.cluster.apiserver.calls import User
from egpu_sim.cluster.kubernetes import ControlPlane
from egpu_sim.cluster.processes import ChildSpec
from support.commands import Place
from support.installing import NAMESPACE, playing
from support.kubernetes_programs import answered, may_answer, without_workloads
from support.waiting import until

SIMULATED = ("elasticgpu.io/pod-logs", "elasticgpu.io/kubelet-socket")
"""Annotations of the simulated kubelet."""
EXPIRING = ("events", "leases")
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

    def node_users(self, node: str) -> dict[str, User]:
        """Return nobody if tokens are of accounts that exist: `admit` has them later."""
        return {} if self.config.kubernetes else super().node_users(node)

    async def admit(self, running: world.Cluster[Any], client: Client) -> None:
        """Write the kubeconfigs of the agents, whose account there is now."""
        if isinstance(plane := running.plane, ControlPlane):
            for node in running.node_names:
                for name, user in super().node_users(node).items():
                    await plane.admit_for_node(client, name, user, node)

    @contextlib.asynccontextmanager
    async def reached(self, running: world.Cluster[Any], client: Client) -> AsyncGenerator[None]:
        """Let the API server reach the webhook at the address of its Service."""
        if isinstance(running.plane, ControlPlane):
            async with answered(client, NAMESPACE, "elastic-gpu-webhook", self._webhook):
                yield
        else:
            yield

    def _node_specs(self, running: world.Cluster[Any], node: str) -> list[ChildSpec]:
        """Tell the agents which DaemonSet they belong to, as deploy/ does."""
        own = ("--daemon-set", f"{NAMESPACE}/elastic-gpu-agent")
        specs = super()._node_specs(running, node)
        return [replace(one, argv=(*one.argv, *own)) if one.name.startswith("agent-") else one for one in specs]

    async def missing(self, running: world.Cluster[Any], client: Client) -> tuple[str, str] | None:
        return None


async def everything(client: Client) -> dict[str, list[str]]:
    """Names of all objects by kind, but for those that expire."""
    groups = (await client.raw("GET", "/apis"))["groups"]
    found: dict[str, list[str]] = {}
    for base in ("/api/v1", *(f"/apis/{one['preferredVersion']['groupVersion']}" for one in groups)):
        kinds = (await client.raw("GET", base))["resources"]
        for name in [one["name"] for one in kinds if "list" in one["verbs"] and one["name"] not in EXPIRING]:
            with contextlib.suppress(Refused):  # of kinds that our server names and does not have
                items = (await client.raw("GET", f"{base}/{name}"))["items"]
                found[f"{base}/{name}"] = sorted(shown(item) for item in items)
    return {kind: named for kind, named in found.items() if named}


def shown(item: dict[str, Any]) -> str:
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"


def traces(node: Node) -> list[str]:
    """What of a node is ours. kubelet itself keeps, as 0, the slots of a plugin that is gone, and the amounts of an
    agent without rights: no pods stand for the agents here, so the command does not wait for their end."""
    amounts = {**(node.status.capacity or {}), **(node.status.allocatable or {})}
    amounts = {name: amount for name, amount in amounts.items() if str(amount) != "0"}
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


def alone(config: ClusterConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterConfig:
    """Return the configuration of a cluster in which nobody makes pods for workloads."""
    monkeypatch.setattr(world, "Controllers", NoControllers)
    if config.kubernetes is None:
        return config
    if not may_answer():
        pytest.skip("Kubernetes's own API server calls a Service at its address, which only root can give it here")
    return replace(config, kubernetes=without_workloads(config.kubernetes, tmp_path / "programs"))


async def test_a_cluster_is_as_before_after_installation_and_removal(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = alone(ClusterConfig(nodes=1, cards_per_node=1, cpu_nodes=1), tmp_path, monkeypatch)
    async with world.started(config, Later(config)) as running, running.client() as client:
        await client.patch(Node, "node-1", {"metadata": {"labels": {"elasticgpu.io/node": "true"}}})
        before = await everything(client)
        async with played(running, client) as ended:
            code, said, errors = await command(place, running, "install", "--wait", "80", "--no-try")
            assert code == 0, (said, errors)
            here = (sys.executable, "-c", trying.PROGRAM)  # our image has it as `python`
            (tried,) = await trying.trials(
                client, NAMESPACE, trying.Shape("any", here), deadline=Deadline(80), progress=lambda _: None
            )
            assert tried.works, tried.said
            assert "0 wrong: ok" in tried.said
            assert "elasticgpu.io/gpu-core" in ((await client.get(Node, "node-1")).status.capacity or {})
            await manifests.create(client, manifests.read(manifests.examples() / "claim.yaml"))
            await until(lambda: succeeded(client), "the pod with the claim")
            code, said, errors = await command(place, running, "uninstall", "--yes", "--wait", "80")
            await asyncio.wait_for(ended.wait(), 80)  # no pods stand for the agents, so the command waits for none
        assert code == 0, (said, errors)
        assert "ElasticGPUClaim default/notebook" in said["removed"]
        assert not any("released by this command" in one for one in said["notes"]), "the controller did"
        await client.delete(Pod, "notebook", namespace="default", grace_period_seconds=0)

        async def as_before() -> bool:
            return await everything(client) == before

        await until(as_before, "the cluster as it was")
        for name in ("node-1", "node-2"):
            assert traces(await client.get(Node, name)) == []


@pytest.mark.parametrize("killed", [False, True], ids=["ends", "is killed"])
async def test_no_pod_that_asks_for_a_gpu_runs_after_everything_was_deleted_at_once(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """As `kubectl delete -k deploy/` does: rights and webhook go first, and nobody is left to clean up. The agent ends
    by itself, or is killed: then the shim speaks for it."""
    config = alone(ClusterConfig(nodes=1, cards_per_node=1), tmp_path, monkeypatch)
    async with world.started(config, Later(config)) as running, running.client() as client:
        await client.patch(Node, "node-1", {"metadata": {"labels": {"elasticgpu.io/node": "true"}}})
        async with played(running, client, killed=killed) as ended:
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
async def played(
    running: world.Cluster[Later], client: Client, *, killed: bool = False
) -> AsyncGenerator[asyncio.Event]:
    """Start the components' processes as soon as Deployments are written, and end agents, or kill them, with their
    DaemonSet. Yield an event for the end of their processes."""
    objects, ended = Objects(client), asyncio.Event()

    async def workloads(kind: str) -> int:
        return len(await objects.all(KINDS[kind], namespace=NAMESPACE))

    async def gone(kind: str) -> bool:
        return not await workloads(kind)

    async def play() -> None:
        await until(lambda: workloads("Deployment"), "the Deployments")
        await running.components.admit(running, client)
        async with running.components.reached(running, client):
            specs = Product.specs(running.components, running)
            await running.fleet.start([one for one in specs if not on_nodes(one)])
            await until(lambda: workloads("DaemonSet"), "the DaemonSets")  # which an agent asks about when it starts
            await running.fleet.start([one for one in specs if on_nodes(one)])
            await until(lambda: gone("DaemonSet"), "the end of the DaemonSets")
            agents = [one.name for one in specs if one.name.startswith("agent-")]
            if killed:
                for name in agents:
                    running.fleet.children[name].kill()
                await running.fleet.stop(agents)
            await running.fleet.stop(
                [one.name for one in specs if on_nodes(one) and one.name in running.fleet.children]
            )
            ended.set()
            await asyncio.Event().wait()

    async with playing(client, trusting=False):
        task = asyncio.create_task(play())
        try:
            yield ended
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def on_nodes(spec: ChildSpec) -> bool:
    return spec.name.startswith(ON_NODES)


async def succeeded(client: Client) -> bool:
    return (await client.get(Pod, "notebook", namespace="default")).status.phase == "Succeeded"
