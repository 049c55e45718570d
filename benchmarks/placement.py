"""How fast pods are placed on an embedded cluster, and what its processes weigh.

The baseline is the same number of pods without a GPU in the same cluster: they are bound by the scheduler loop alone,
without webhook and extender, so the ratio says what our part costs.
"""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import Report
from egpu.adapters.kubernetes import Client
from egpu.api import names
from egpu.api.kubernetes import Pod
from egpu.embedded import manifests
from egpu.embedded.cluster import Cluster, ClusterConfig, cluster

NODES, CARDS_PER_NODE = 4, 8
PODS = 200
DEADLINE_SECONDS = 300.0
GOAL_RATIO = 0.8


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    pods = PODS // 5 if report.options.quick else PODS
    report.progress(f"{pods} pods without and {pods} with a GPU, on an embedded cluster")
    figures = asyncio.run(_run(pods))
    rows = [(name.replace("_", " "), value) for name, value in figures.items() if name != "memory_mib"]
    report.table("pods placed (wall time on this computer)", ("", "figure"), rows)
    ratio = figures["ratio_to_plain"]
    report.verdict("GPU pods to plain pods a second", f"{ratio:.2f}", f"at least {GOAL_RATIO:g}", ratio >= GOAL_RATIO)
    report.table("memory of the processes", ("", "MiB"), figures["memory_mib"].items())
    return figures


async def _run(pods: int) -> dict[str, Any]:
    config = ClusterConfig(nodes=NODES, cards_per_node=CARDS_PER_NODE, log_level="warning")
    began = time.monotonic()
    async with cluster(config) as running, running.client() as client:
        ready_seconds = time.monotonic() - began
        plain = await _placed_per_second(client, "plain", pods, {})
        shared = await _placed_per_second(client, "shared", pods, {names.GPU_CORE: "10", names.GPU_MEMORY: "1000"})
        memory = _memory_mib(running)
    return {
        "nodes": NODES,
        "cards_per_node": CARDS_PER_NODE,
        "pods": pods,
        "cluster_ready_seconds": round(ready_seconds, 2),
        "plain_pods_per_second": round(plain, 1),
        "gpu_pods_per_second": round(shared, 1),
        "ratio_to_plain": round(shared / plain, 3),
        "memory_mib": memory,
    }


async def _placed_per_second(client: Client, prefix: str, count: int, limits: Mapping[str, str]) -> float:
    """Create pods at once; pods bound per second, from the first creation to the last binding."""
    pods = [_pod(f"{prefix}-{number}", limits) for number in range(count)]
    began = time.monotonic()
    await asyncio.gather(*(manifests.create(client, [pod]) for pod in pods))
    while True:
        found = [pod for pod in await client.list(Pod, namespace="default") if pod.name.startswith(prefix)]
        if len(found) == count and all(pod.spec.node_name for pod in found):
            break
        if time.monotonic() - began > DEADLINE_SECONDS:
            raise TimeoutError(f"{count} {prefix} pods were not bound within {DEADLINE_SECONDS:g} s")
        await asyncio.sleep(0.05)
    rate = count / (time.monotonic() - began)
    for pod in found:
        await client.delete(Pod, pod.name, namespace="default", grace_period_seconds=0)
    await _until_gone(client, prefix)
    return rate


async def _until_gone(client: Client, prefix: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        if not any(pod.name.startswith(prefix) for pod in await client.list(Pod, namespace="default")):
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"the {prefix} pods were not gone within {DEADLINE_SECONDS:g} s")


def _pod(name: str, limits: Mapping[str, str]) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "c", "image": "any", "command": ["sleep", "600"]}
    if limits:
        container["resources"] = {"limits": dict(limits)}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _memory_mib(running: Cluster) -> dict[str, float]:
    """Proportional set size by component, MiB; of kubelets and agents the largest."""
    weights: dict[str, float] = {"API server and scheduler loop": _pss_mib(Path("/proc/self"))}
    for name, child in running.fleet.children.items():
        kind = name.split("-")[0]
        if child.pid is not None:
            weights[kind] = max(weights.get(kind, 0.0), _pss_mib(Path(f"/proc/{child.pid}")))
    return weights


def _pss_mib(process: Path) -> float:
    for line in (process / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise RuntimeError(f"{process} has no Pss")
