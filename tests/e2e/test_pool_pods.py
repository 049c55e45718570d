"""Pods of the pool on the simulated cluster: on a node without GPUs, on a slice of another node's card."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

from egpu.adapters import native
from egpu.adapters.executors.leftovers import processes_of
from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.kubernetes import Client
from support.commands import Place
from support.waiting import until

MIB = 1024 * 1024
WITHOUT_GPUS = {"elasticgpu.io/gpu-count": "0"}
MEMORY = [str(native.path("samples/egpu-sample-memory")), "--json"]
INFO = str(native.path("samples/egpu-sample-info"))


def a_pod(name: str, command: list[str], *, core: int = 30, memory_mib: int = 512, **spec: Any) -> dict[str, Any]:
    limits = {names.POOL_CORE: core, names.POOL_MEMORY: memory_mib}
    container = {"name": "main", "image": "any", "command": command, "resources": {"limits": limits}}
    settings = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "nodeSelector": WITHOUT_GPUS}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {**settings, **spec, "containers": [container]},
    }


async def phase(client: Client, name: str, *wanted: str) -> Pod:
    async def look() -> Pod | None:
        pod = await client.get(Pod, name, namespace="default")
        return pod if pod.status.phase in wanted else None

    return await until(look, f"pod {name} {' or '.join(wanted)}")


async def log(client: Client, name: str) -> str:
    return await client.text(f"/api/v1/namespaces/default/pods/{name}/log", params={"container": "main"})


async def given_out(place: Place, running: Cluster) -> list[dict[str, Any]]:
    done = await asyncio.to_thread(place.run, "get", "gpus", "-o", "json", KUBECONFIG=str(running.kubeconfig))
    return json.loads(done.stdout)


async def test_a_pod_without_a_gpu_near_it_computes_on_another_nodes_card(place: Place) -> None:
    async with cluster(ClusterConfig(nodes=1, cards_per_node=1, cpu_nodes=1)) as running, running.client() as client:
        # by a claim and by its own words, from the example
        for example in ("pool.yaml", "pool-claim.yaml"):
            await manifests.create(client, manifests.read(manifests.examples() / example))
        for name in ("pool-claim", "pool-slice"):
            pod = await phase(client, name, "Succeeded")
            assert pod.spec.node_name == "node-2"
            given = decode_allocation(pod.annotations[names.ALLOCATION])
            assert (given.node, given.containers["main"].server) == ("node-2", "node-1")
            assert "0 wrong: ok" in await log(client, name)

        # to the byte
        await manifests.create(client, [a_pod("greedy", MEMORY)])
        await phase(client, "greedy", "Succeeded")
        said = json.loads((await log(client, "greedy")).splitlines()[-1])
        assert (said["given_bytes"], said["error"]) == (512 * MIB, "CUDA_ERROR_OUT_OF_MEMORY")
        assert said["total"] == 512 * MIB

        # counted on the card that serves, and shown
        steady = a_pod("steady", ["sh", "-c", f"{INFO} && sleep 1000"], core=70)
        await manifests.create(client, [steady])
        await phase(client, "steady", "Running")
        (card,) = await given_out(place, running)
        assert (card["node"], card["mode"], card["corePercentGiven"]) == ("node-1", names.POOL, 90)
        assert "pod default/steady" in card["heldBy"]
        table = await asyncio.to_thread(place.run, "get", "pods", KUBECONFIG=str(running.kubeconfig))
        assert "512 MiB of node-1" in table.stdout
        explained = await asyncio.to_thread(place.run, "explain", "pod", "steady", KUBECONFIG=str(running.kubeconfig))
        assert "of node node-1, by elasticgpu.io/pool" in explained.stdout

        async def answered() -> bool:
            return "NVIDIA A100" in await log(client, "steady")

        await until(answered, "the program's first words")

        # what does not fit waits, and says which card of which node is short of what
        await manifests.create(client, [a_pod("late", MEMORY)])
        explained = await asyncio.to_thread(place.run, "explain", "pod", "late", KUBECONFIG=str(running.kubeconfig))
        assert "of node-1 has 10 % of compute free, 30 % needed" in explained.stdout

        # and is placed when the other is gone, whose executor ends with it
        served = running.node_dir("node-1") / "agent" / "served"
        (executor,) = served.iterdir()
        await client.raw("DELETE", "/api/v1/namespaces/default/pods/steady", body=None)
        await phase(client, "late", "Succeeded")

        async def ended() -> bool:
            return not list(served.iterdir()) and not processes_of(executor)

        await until(ended, "the end of the executors")
        (card,) = await given_out(place, running)
        assert card["heldBy"] == ["claim default/far-card"]

        # where a node has a card, its own comes first: the program and its executor share memory
        await manifests.create(client, [a_pod("near", ["sh", "-c", f"{INFO} && sleep 1000"], nodeSelector={})])
        pod = await phase(client, "near", "Running")
        assert decode_allocation(pod.annotations[names.ALLOCATION]).containers["main"].server == pod.spec.node_name
        assert not list((running.node_dir("node-1") / "agent" / "bridges").iterdir())


SPIN = [str(native.path("samples/egpu-sample-spin")), "--us=1000", "--seconds=100000"]


async def ready(client: Client, node: str, status: str) -> None:
    """What a cluster's node controller says of a node that no longer answers; the simulated one has none."""
    condition = {"type": "Ready", "status": status, "reason": "NodeStatusUnknown"}
    await client.patch(Node, node, {"status": {"conditions": [condition]}}, subresource="status")


async def test_a_node_that_serves_is_lost_and_comes_back(place: Place) -> None:
    async with cluster(ClusterConfig(nodes=1, cards_per_node=1, cpu_nodes=1)) as running, running.client() as client:
        served = running.node_dir("node-1") / "agent" / "served"
        pod = a_pod("steady", SPIN, core=50, restartPolicy="Always")
        await manifests.create(client, [pod])
        await phase(client, "steady", "Running")

        def sessions() -> list[Path]:
            return [one for one in served.iterdir() if (one / "events").read_text().count('"opened"')]

        async def computes() -> bool:
            return bool(sessions())

        await until(computes, "the program's session")

        # The machine is gone: its agent, its kubelet, its executors, all at once.
        lost = ("kubelet-node-1", "agent-node-1", "shim-node-1")
        specs = [running.fleet.children[name].spec for name in lost]
        (executor,) = served.iterdir()
        await running.fleet.stop(lost)
        for pid in processes_of(executor):
            os.kill(pid, signal.SIGKILL)
        await ready(client, "node-1", "Unknown")

        async def restarting() -> Any:
            found = await client.get(Pod, "steady", namespace="default")
            (status,) = found.status.container_statuses or (None,)
            said = await log(client, "steady")
            assert found.status.phase in ("Running", "Pending"), found.status
            return status is not None and not status.ready and "CUDA_ERROR_DEVICE_UNAVAILABLE" in said

        await until(restarting, "the program's end with CUDA_ERROR_DEVICE_UNAVAILABLE")

        # Nothing new is put there, and what waits says why; what was given out stays so.
        await manifests.create(client, [a_pod("late", MEMORY, core=20)])

        async def refused() -> bool:
            waiting = await client.get(Pod, "late", namespace="default")
            assert waiting.spec.node_name == ""
            return any(one.type == "PodScheduled" and one.status == "False" for one in waiting.status.conditions or [])

        await until(refused, "the scheduler's look at what waits")
        told = await asyncio.to_thread(place.run, "explain", "pod", "late", KUBECONFIG=str(running.kubeconfig))
        assert "no node serves cards to the pool now" in told.stdout
        (card,) = await given_out(place, running)
        assert (card["corePercentGiven"], card["heldBy"]) == (50, ["pod default/steady"])

        # It comes back: what waits is placed, and what had its slice there runs in it again.
        await running.fleet.start(specs)
        await phase(client, "late", "Succeeded")

        async def again() -> bool:
            found = await client.get(Pod, "steady", namespace="default")
            (status,) = found.status.container_statuses or (None,)
            return status is not None and status.ready and bool(sessions())

        await until(again, "the program's next session")
        (card,) = await given_out(place, running)
        assert (card["corePercentGiven"], card["heldBy"]) == (50, ["pod default/steady"])

        # And no share of it is left when its pods are gone.
        for name in ("steady", "late"):
            await client.raw("DELETE", f"/api/v1/namespaces/default/pods/{name}", body=None)

        async def free() -> bool:
            (card,) = await given_out(place, running)
            return not card["heldBy"] and card["corePercentGiven"] == 0 and not list(served.iterdir())

        await until(free, "the card's freedom")
