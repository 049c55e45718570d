"""Agents are rolled over, and killed, while programs compute and bare pods come and go: nobody is the worse for it."""

import asyncio

from egpu.adapters import native
from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.kubernetes import Client
from support import programs
from support.waiting import until

VISITORS = 12
GAP_SECONDS = 0.7
INFO = [str(native.path("samples/egpu-sample-info")), "--json"]


async def visit(client: Client) -> list[str]:
    """Bare pods, one after the other, of both kinds."""
    visitors = [f"visitor-{number}" for number in range(VISITORS)]
    for number, name in enumerate(visitors):
        pod = programs.pod(name, INFO, pool=number % 2 == 0, restartPolicy="Never")
        await manifests.create(client, [pod])
        await asyncio.sleep(GAP_SECONDS)
    return visitors


async def roll_over(running: Cluster) -> None:
    """Every agent, as a DaemonSet's pods are replaced; then every one killed, all at once."""
    agents = [child for name, child in running.fleet.children.items() if name.startswith("agent-")]
    for agent in agents:
        await agent.roll()
        await asyncio.sleep(GAP_SECONDS)
    for agent in agents:
        await until(lambda agent=agent: agent.pid is not None, "the next agent's process")
        agent.kill()


async def test_a_rollout_under_load_loses_no_pod_and_interrupts_no_program() -> None:
    config = ClusterConfig(nodes=1, cards_per_node=2, cpu_nodes=1)
    async with cluster(config) as running, running.client() as client:
        await manifests.create(client, programs.steady())
        await until(lambda: programs.computing(running) == 3, "three programs compute")
        visiting = asyncio.create_task(visit(client))
        await roll_over(running)
        visitors = await visiting
        await until(lambda: programs.succeeded(client, visitors), "the visitors' success")
        before = programs.gpu_seconds(running)
        await until(lambda: programs.progress(before, programs.gpu_seconds(running)) >= 3, "they all compute on")
        assert not await programs.interrupted(client)

        # The agents have found the executors again: with the pods they end.
        for name in ("direct", "beside", "remote"):
            await client.raw("DELETE", f"/api/v1/namespaces/default/pods/{name}", body=None)
        folders = [running.node_dir(node) / "agent" / folder
                   for node in running.node_names for folder in ("executors", "served")]  # fmt: skip
        await until(lambda: not [one for folder in folders for one in folder.iterdir()], "the executors' end")
