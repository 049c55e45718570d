"""How often two schedulers give out a node's CPU twice, and what becomes of the pods that kubelets then refuse.

Half of the pods ask for a GPU and go to our scheduler, the others go to the cluster's. Both fill the same nodes, which
are nearly full all the time: each pod needs an eighth of a node's CPU, runs for a while and ends. The kubelets are as
hollow as the nodes: they check that a pod fits, as kubelets do, and report its end. Measured with the embedded control
plane, and with `--kubernetes DIR` with Kubernetes's own programs.
"""

import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.extender.world import World
from benchmarks.hollow import fill
from benchmarks.report import Report
from egpu.api import names
from egpu.laptop.cluster import ClusterConfig, without_nodes
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.errors import Conflict, NotFound
from egpu_base.kubernetes import Change, Client, Reflector
from egpu_sim.cluster.kubernetes import ControlPlane

NODES, CPUS, CPUS_A_POD = 10, 32, 4
PODS_A_SECOND = 50.0
SECONDS = 60.0
LOADS: Final = {"90 % of the CPU asked for": 0.9, "110 %": 1.1}
"""With more than there is, pods of both kinds wait for each CPU that becomes free."""
SETTLE_SECONDS = 10.0
LAST_SECONDS = 120.0
"""Time for the pods that are left when the last one has come."""
PLAIN, GPU = "plain", "gpu"
LIMITS: Final = {names.GPU_CORE: "5", names.GPU_MEMORY: "500"}


@dataclass
class Kubelets:
    """The kubelets of all nodes."""

    client: Client
    tasks: asyncio.TaskGroup
    runs_seconds: float
    free: Counter[str] = field(default_factory=Counter[str])
    """CPUs by node."""
    seen: set[str] = field(default_factory=set[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    """Refusals by kind of pod."""
    succeeded: Counter[str] = field(default_factory=Counter[str])
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    def changed(self, change: Change[Pod]) -> None:
        """Admit or refuse a pod that was just bound to a node."""
        pod = change.new
        if pod is None or not pod.spec.node_name or pod.uid in self.seen or pod.finished:
            return
        self.seen.add(pod.uid)
        node, kind = pod.spec.node_name, pod.name.partition("-")[0]
        if self.free[node] < CPUS_A_POD:
            self.refused[kind] += 1
            self.tasks.create_task(self._report(pod, {"phase": "Failed", "reason": "OutOfcpu"}))
            return
        self.free[node] -= CPUS_A_POD
        self.tasks.create_task(self._run(pod, node, kind))

    async def ended(self, kind: str, count: int) -> None:
        """Wait until so many pods of a kind have ended well."""
        async with self.news:
            await self.news.wait_for(lambda: self.succeeded[kind] >= count)

    async def _run(self, pod: Pod, node: str, kind: str) -> None:
        await self._report(pod, {"phase": "Running"})
        await asyncio.sleep(self.runs_seconds)
        self.free[node] += CPUS_A_POD
        await self._report(pod, {"phase": "Succeeded"})
        self.succeeded[kind] += 1
        async with self.news:
            self.news.notify_all()

    async def _report(self, pod: Pod, status: dict[str, str]) -> None:
        body = {"metadata": {"uid": pod.uid}, "status": status}
        with contextlib.suppress(Conflict, NotFound):
            await self.client.patch(Pod, pod.name, body, namespace=pod.namespace, subresource="status")


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    seconds = SECONDS / 6 if report.options.quick else SECONDS
    planes = {"embedded control plane": None, "Kubernetes's own programs": report.options.kubernetes}
    figures: dict[str, Any] = {"pods_per_second": PODS_A_SECOND, "seconds": seconds}
    for what, programs in planes.items():
        if what != "embedded control plane" and programs is None:
            continue
        for load, factor in LOADS.items():
            case = f"{what}, {load}"
            report.progress(f"{case}: {NODES} nodes, {PODS_A_SECOND:g} pods/s for {seconds:g} s, half with a GPU")
            figures[case] = found = asyncio.run(_measured(programs, seconds, factor))
            report.table(
                f"{case}: pods",
                ("", "made", "refused", "ended well"),
                [(kind, *(found[kind][key] for key in ("made", "refused", "succeeded"))) for kind in (PLAIN, GPU)],
            )
            lost = found[GPU]["made"] - found[GPU]["succeeded"]
            report.verdict(f"{case}: GPU pods that were lost", str(lost), "0", lost == 0)
    return figures


async def _measured(programs: Path | None, seconds: float, load: float) -> dict[str, Any]:
    runs_seconds = load * NODES * CPUS / CPUS_A_POD / PODS_A_SECOND
    async with without_nodes(ClusterConfig(kubernetes=programs, log_level="warning")) as running:
        if isinstance(running.plane, ControlPlane):  # its controllers would find that no kubelet writes for the nodes
            await running.plane.fleet.stop(["kube-controller-manager"])
        async with running.client() as client, asyncio.TaskGroup() as group:
            world = World(NODES, running=0)
            await fill(client, world)
            for node in await client.list(Node):
                status = {kind: {"cpu": str(CPUS)} for kind in ("capacity", "allocatable")}
                await client.patch(Node, node.name, {"status": status}, subresource="status")
            free = Counter({node["metadata"]["name"]: CPUS for node in world.nodes})
            kubelets = Kubelets(client, group, runs_seconds, free)
            pods = Reflector(client, Pod)
            pods.on_change(kubelets.changed)
            watching = group.create_task(pods.run())
            await pods.synced.wait()
            await asyncio.sleep(SETTLE_SECONDS)
            made, took = await _create(client, group, seconds)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(kubelets.ended(GPU, made[GPU]), LAST_SECONDS)
            watching.cancel()
        return {"seconds": round(took, 1)} | {
            kind: {
                "made": made[kind],
                "refused": kubelets.refused[kind],
                "succeeded": kubelets.succeeded[kind],
            }
            for kind in (PLAIN, GPU)
        }


async def _create(client: Client, group: asyncio.TaskGroup, seconds: float) -> tuple[Counter[str], float]:
    """Create pods at the rate, of both kinds in turn. Return how many, and how long it took."""
    made: Counter[str] = Counter()
    began = time.monotonic()
    last: list[asyncio.Task[Any]] = []
    for number in range(int(seconds * PODS_A_SECOND)):
        await asyncio.sleep(max(0.0, began + number / PODS_A_SECOND - time.monotonic()))
        kind = (PLAIN, GPU)[number % 2]
        made[kind] += 1
        body = _pod(f"{kind}-{number}", LIMITS if kind == GPU else {})
        last.append(group.create_task(client.raw("POST", "/api/v1/namespaces/default/pods", body=body)))
    await asyncio.gather(*last)
    return made, time.monotonic() - began


def _pod(name: str, limits: dict[str, str]) -> dict[str, Any]:
    resources = {"requests": {"cpu": str(CPUS_A_POD)}, "limits": limits}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "x", "resources": resources}]},
    }
