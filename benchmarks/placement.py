"""How fast pods are placed on an embedded cluster, where its processes' time goes, and what they weigh.

The baseline is the same number of pods without a GPU in the same cluster: they are bound by the scheduler loop alone,
without webhook and extender, so the ratio says what our part costs. Everything runs on this one computer, so that pods
are bound while kubelets and agents start those that were bound before. In a real cluster those are other computers:
what is bound while they stand still is shown beside it, as what the control plane does alone.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.extender.caller import memory_mib
from benchmarks.report import Report
from egpu.adapters.kubernetes import Client
from egpu.api import names
from egpu.api.kubernetes import Pod
from egpu.embedded import manifests
from egpu.embedded.cluster import Cluster, ClusterConfig, cluster

NODES, CARDS_PER_NODE = 4, 8
PODS = 200
DEADLINE_SECONDS = 300.0
LOOK_SECONDS = 0.02
GOAL_RATIO = 0.8
GPU: Final = {names.GPU_CORE: "10", names.GPU_MEMORY: "1000"}
OURSELVES: Final = "API server, scheduler loop"
"""They are in the process of this benchmark, and so is what creates the pods."""
OF_NODES: Final = ("kubelet", "shim", "agent")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Placed:
    """Pods of one kind. `processor_ms`: of one pod until all were bound, by component, with children that ended."""

    per_second: float
    processor_ms: Mapping[str, float]


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    pods = PODS // 5 if report.options.quick else PODS
    report.progress(
        f"{pods} pods without and {pods} with a GPU, on an embedded cluster; then the same while nodes rest"
    )
    found, figures = asyncio.run(_measured(pods))
    report.table(
        "pods bound a second (wall time on this computer)",
        ("", "plain", "GPU", "ratio"),
        [(what, plain.per_second, gpu.per_second, f"{_ratio(plain, gpu):.2f}") for what, (plain, gpu) in found.items()],
    )
    ratio = _ratio(*found["whole cluster"])
    report.verdict("GPU pods to plain pods a second", f"{ratio:.2f}", f"at least {GOAL_RATIO:g}", ratio >= GOAL_RATIO)
    for what, (plain, gpu) in found.items():
        rows = [(name, plain.processor_ms[name], gpu.processor_ms[name]) for name in gpu.processor_ms]
        sums = ("all", sum(plain.processor_ms.values()), sum(gpu.processor_ms.values()))
        report.table(f"processor ms a pod until it was bound, {what}", ("", "plain", "GPU"), [*rows, sums])
    report.table("memory of the processes", ("", "MiB"), figures["memory_mib"].items())
    return figures


async def _measured(pods: int) -> tuple[dict[str, tuple[Placed, Placed]], dict[str, Any]]:
    """By what ran, plain pods and GPU pods; and the figures."""
    config = ClusterConfig(nodes=NODES, cards_per_node=CARDS_PER_NODE, log_level="warning")
    began = time.monotonic()
    async with cluster(config) as running, running.client() as client:
        ready_seconds = time.monotonic() - began
        found = {"whole cluster": await _pair(running, client, "all", pods, resting=())}
        memory = _memory_mib(running)
        found["control plane alone"] = await _pair(running, client, "alone", pods, resting=OF_NODES)
    (plain, gpu), (plain_alone, gpu_alone) = found.values()
    return found, {
        "nodes": NODES,
        "cards_per_node": CARDS_PER_NODE,
        "pods": pods,
        "cluster_ready_seconds": round(ready_seconds, 2),
        "plain_pods_per_second": round(plain.per_second, 1),
        "gpu_pods_per_second": round(gpu.per_second, 1),
        "ratio_to_plain": round(_ratio(plain, gpu), 3),
        "plain_pods_per_second_alone": round(plain_alone.per_second, 1),
        "gpu_pods_per_second_alone": round(gpu_alone.per_second, 1),
        "ratio_to_plain_alone": round(_ratio(plain_alone, gpu_alone), 3),
        "plain_processor_ms": _rounded(plain.processor_ms),
        "gpu_processor_ms": _rounded(gpu.processor_ms),
        "memory_mib": memory,
    }


async def _pair(
    running: Cluster, client: Client, prefix: str, pods: int, *, resting: Sequence[str]
) -> tuple[Placed, Placed]:
    plain = await _placed(running, client, f"{prefix}-plain", pods, limits={}, resting=resting)
    return plain, await _placed(running, client, f"{prefix}-gpu", pods, limits=GPU, resting=resting)


async def _placed(
    running: Cluster, client: Client, prefix: str, count: int, *, limits: Mapping[str, str], resting: Sequence[str]
) -> Placed:
    """Create pods at once; from the first creation to the last binding, while the components `resting` stand still.
    Whether a pod is bound is looked up in the server's store: to list hundreds of pods again and again would be a part
    of what is measured. They are gone when it returns."""
    pods = [_pod(f"{prefix}-{number}", limits) for number in range(count)]
    with _still(running, resting):
        began, before = time.monotonic(), _spent_seconds(running)
        await asyncio.gather(*(manifests.create(client, [pod]) for pod in pods))
        while _bound(running, prefix) < count:
            if time.monotonic() - began > DEADLINE_SECONDS:
                raise TimeoutError(f"{count} {prefix} pods were not bound within {DEADLINE_SECONDS:g} s")
            await asyncio.sleep(LOOK_SECONDS)
        seconds, after = time.monotonic() - began, _spent_seconds(running)
    for pod in pods:
        await client.delete(Pod, pod["metadata"]["name"], namespace="default", grace_period_seconds=0)
    await _until_gone(client, prefix)
    return Placed(count / seconds, {name: (after[name] - before[name]) * 1000 / count for name in after})


@contextlib.contextmanager
def _still(running: Cluster, kinds: Sequence[str]) -> Generator[None]:
    """Inside, the processes of these components are stopped."""
    stopped = [child.pid for name, child in running.fleet.children.items() if name.split("-")[0] in kinds and child.pid]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def _bound(running: Cluster, prefix: str) -> int:
    pods = running.server.store.shelf("pods").items
    return sum(1 for (_, name), one in pods.items() if name.startswith(prefix) and one.obj["spec"].get("nodeName"))


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


def _processes(running: Cluster) -> list[tuple[str, int]]:
    """The component of each process, and its pid."""
    children = [(name.split("-")[0], child.pid) for name, child in running.fleet.children.items()]
    return [(OURSELVES, os.getpid()), *((kind, pid) for kind, pid in children if pid is not None)]


def _spent_seconds(running: Cluster) -> dict[str, float]:
    """Processor time by component so far, of its children that ended too (proc(5): utime, stime, cutime, cstime)."""
    spent = defaultdict[str, float](float)
    for kind, pid in _processes(running):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        spent[kind] += sum(map(int, fields[11:15])) / _TICKS
    return spent


def _memory_mib(running: Cluster) -> dict[str, float]:
    """Proportional set size by component, MiB; of kubelets and agents the largest."""
    weights: dict[str, float] = {}
    for kind, pid in _processes(running):
        weights[kind] = max(weights.get(kind, 0.0), round(memory_mib(pid), 1))
    return weights


def _ratio(plain: Placed, gpu: Placed) -> float:
    return gpu.per_second / plain.per_second


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(figure, 1) for name, figure in figures.items()}
