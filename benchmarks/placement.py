"""The speed of placing and starting pods, the processes' time, and their memory.

The baseline is the same number of pods without a GPU in the same cluster: they need neither webhook nor extender, so
the ratio shows the cost of our part. Everything runs on this one computer, where kubelets and agents start pods while
others are being bound; in a real cluster those are other computers. Hence three figures:

    control plane alone      until all are bound, while the nodes' processes stand still
    whole cluster, bound     until all are bound, whatever the nodes have started by then
    whole cluster, running   until all run

Measured with the embedded control plane, and with `--kubernetes DIR` with Kubernetes's own programs too.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.extender.caller import memory_mib
from benchmarks.report import Report
from egpu.api import names
from egpu.core.schedulers import OWN_SCHEDULER
from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client, Reflector
from egpu_sim.cluster.kubernetes import ControlPlane

NODES, CARDS_PER_NODE = 4, 8
PODS = 200
DEADLINE_SECONDS = 300.0
LOOK_SECONDS = 0.02
GOAL_RATIO = 0.8
GPU: Final = {names.GPU_CORE: "10", names.GPU_MEMORY: "1000"}
EMBEDDED: Final = "API server, scheduler loop"
"""They run in the process of this benchmark, and so does the creation of pods."""
BENCHMARK: Final = "this benchmark"
OF_NODES: Final = ("kubelet", "shim", "agent")
_TICKS: Final = os.sysconf("SC_CLK_TCK")

Count = Callable[[str], int]
"""A count of pods with this prefix that have reached the wanted state."""


@dataclass(frozen=True)
class Placed:
    """Pods of one kind. `processor_ms` of one pod until all were there, by component, with ended children."""

    per_second: float
    processor_ms: Mapping[str, float]


Pairs = dict[str, tuple[Placed, Placed]]
"""Plain pods and GPU pods, by the timed state."""


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    pods = PODS // 5 if report.options.quick else PODS
    report.progress(f"{pods} pods without and {pods} with a GPU, on an embedded cluster, three times")
    found, figures = asyncio.run(_measured(pods, None))
    _show(report, found, figures)
    if report.options.kubernetes is not None:
        report.progress("the same with Kubernetes's own control plane")
        found, figures["kubernetes"] = asyncio.run(_measured(pods, report.options.kubernetes))
        _show(report, found, figures["kubernetes"], "Kubernetes's own control plane: ")
    return figures


def _show(report: Report, found: Pairs, figures: Mapping[str, Any], prefix: str = "") -> None:
    show(report, found, prefix)
    report.table(f"{prefix}memory of the processes", ("", "MiB"), figures["memory_mib"].items())


def show(report: Report, found: Pairs, prefix: str = "") -> None:
    """Print tables of the results, with titles that begin with `prefix`, and whether the goal is met."""
    report.table(
        f"{prefix}pods a second (wall time on this computer)",
        ("", "plain", "GPU", "ratio"),
        [(what, plain.per_second, gpu.per_second, f"{_ratio(plain, gpu):.2f}") for what, (plain, gpu) in found.items()],
    )
    for what, (plain, gpu) in found.items():
        rows = [(name, plain.processor_ms[name], gpu.processor_ms[name]) for name in gpu.processor_ms]
        sums = ("all", sum(plain.processor_ms.values()), sum(gpu.processor_ms.values()))
        report.table(f"{prefix}processor ms a pod, {what}", ("", "plain", "GPU"), [*rows, sums])
        ratio, goal = _ratio(plain, gpu), f"at least {GOAL_RATIO:g}"
        report.verdict(f"{prefix}GPU pods to plain pods, {what}", f"{ratio:.2f}", goal, ratio >= GOAL_RATIO)


def figures_of(found: Pairs) -> dict[str, Any]:
    """Return the results for JSON."""
    return {
        what: {
            "plain_pods_per_second": round(plain.per_second, 1),
            "gpu_pods_per_second": round(gpu.per_second, 1),
            "ratio_to_plain": round(_ratio(plain, gpu), 3),
            "plain_processor_ms": rounded(plain.processor_ms),
            "gpu_processor_ms": rounded(gpu.processor_ms),
        }
        for what, (plain, gpu) in found.items()
    }


async def _measured(pods: int, kubernetes: Path | None) -> tuple[Pairs, dict[str, Any]]:
    config = ClusterConfig(nodes=NODES, cards_per_node=CARDS_PER_NODE, kubernetes=kubernetes, log_level="warning")
    began = time.monotonic()
    async with cluster(config) as running, running.client() as client:
        ready_seconds = time.monotonic() - began
        async with counts(running, client) as (bound, running_):
            measured = Measured(running, client, pods)
            found = {
                "whole cluster, bound": await measured.pair("bound", bound),
                "whole cluster, running": await measured.pair("run", running_),
                "control plane alone": await measured.pair("alone", bound, resting=OF_NODES),
            }
        memory = _memory_mib(running)
    figures: dict[str, Any] = {
        "nodes": NODES,
        "cards_per_node": CARDS_PER_NODE,
        "pods": pods,
        "cluster_ready_seconds": round(ready_seconds, 2),
        "memory_mib": memory,
        **figures_of(found),
    }
    return found, figures


@contextlib.asynccontextmanager
async def counts(running: Cluster, client: Client) -> AsyncGenerator[tuple[Count, Count], None]:
    """Count bound pods and running pods. Our own server's store is read directly, because a watch would be a part of
    the measurement; Kubernetes's has to be watched, and its time is shown."""
    if not isinstance(running.plane, ControlPlane):
        shelf = running.server.store.shelf("pods")

        def among(is_so: Callable[[dict[str, Any]], bool]) -> Count:
            return lambda prefix: sum(
                name.startswith(prefix) and is_so(one.obj) for (_, name), one in shelf.items.items()
            )

        yield (
            among(lambda obj: bool(obj["spec"].get("nodeName"))),
            among(lambda obj: obj.get("status", {}).get("phase") == "Running"),
        )
        return
    pods = Reflector(client, Pod)
    task = asyncio.create_task(pods.run())
    await pods.synced.wait()
    try:
        yield (
            lambda prefix: sum(one.name.startswith(prefix) and bool(one.spec.node_name) for one in pods),
            lambda prefix: sum(one.name.startswith(prefix) and one.status.phase == "Running" for one in pods),
        )
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@dataclass(frozen=True)
class Measured:
    """Places pods of both kinds, one kind after the other. `at_once`: the number created in parallel."""

    cluster: Cluster
    client: Client
    pods: int
    at_once: int = 1 << 20

    async def pair(self, prefix: str, there: Count, *, resting: Sequence[str] = ()) -> tuple[Placed, Placed]:
        plain = await self._placed(f"{prefix}-plain", {}, there, resting)
        return plain, await self._placed(f"{prefix}-gpu", GPU, there, resting)

    async def _placed(self, prefix: str, limits: Mapping[str, str], there: Count, resting: Sequence[str]) -> Placed:
        pods = [a_pod(f"{prefix}-{number}", limits) for number in range(self.pods)]
        return await self.placed(prefix, pods, there, resting=resting)

    async def placed(
        self, prefix: str, pods: Sequence[dict[str, Any]], there: Count, *, resting: Sequence[str] = ()
    ) -> Placed:
        """Create pods, whose names begin with `prefix`; measure from the first creation until the last of them is
        there, while the components `resting` stand still. They are gone when it returns."""
        with _still(self.cluster, resting):
            began, before = time.monotonic(), _spent_seconds(self.cluster)
            await some_at_once(self.at_once, (manifests.create(self.client, [pod]) for pod in pods))
            while there(prefix) < len(pods):
                if time.monotonic() - began > DEADLINE_SECONDS:
                    raise TimeoutError(f"{there(prefix)} of {len(pods)} {prefix} pods after {DEADLINE_SECONDS:g} s")
                await asyncio.sleep(LOOK_SECONDS)
            seconds, after = time.monotonic() - began, _spent_seconds(self.cluster)
        for pod in pods:
            await self.client.delete(Pod, pod["metadata"]["name"], namespace="default", grace_period_seconds=0)
        await self._until_gone(prefix)
        return Placed(len(pods) / seconds, {name: (after[name] - before[name]) * 1000 / len(pods) for name in after})

    async def _until_gone(self, prefix: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            if not any(pod.name.startswith(prefix) for pod in await self.client.list(Pod, namespace="default")):
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"the {prefix} pods were not gone within {DEADLINE_SECONDS:g} s")


async def some_at_once(at_most: int, work: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Do all of it, so many at a time."""
    gate = asyncio.Semaphore(at_most)

    async def one(each: Coroutine[Any, Any, Any]) -> None:
        async with gate:
            await each

    await asyncio.gather(*map(one, work))


@contextlib.contextmanager
def _still(running: Cluster, kinds: Sequence[str]) -> Generator[None]:
    """Stop the processes of these components inside the block."""
    stopped = [child.pid for name, child in running.fleet.children.items() if name.split("-")[0] in kinds and child.pid]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def a_pod(name: str, limits: Mapping[str, str]) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "c", "image": "any", "command": ["sleep", "600"]}
    if limits:
        container["resources"] = {"limits": dict(limits)}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _processes(running: Cluster) -> list[tuple[str, int]]:
    """Return the component and the pid of each process."""
    own = {name: child.pid for name, child in running.fleet.children.items()}
    ours = EMBEDDED
    theirs: dict[str, int | None] = {}
    if isinstance(running.plane, ControlPlane):
        ours, theirs = BENCHMARK, {name: child.pid for name, child in running.plane.fleet.children.items()}
    found = [(ours, os.getpid()), *theirs.items(), *((_component(name), pid) for name, pid in own.items())]
    return [(kind, pid) for kind, pid in found if pid is not None]


def _component(process: str) -> str:
    """Return the component that a process is one of: agents of all nodes are one."""
    return "own kube-scheduler" if process == OWN_SCHEDULER else process.partition("-")[0]


def _spent_seconds(running: Cluster) -> dict[str, float]:
    """Return processor time by component so far, with ended children (proc(5): utime, stime, cutime, cstime)."""
    spent = defaultdict[str, float](float)
    for kind, pid in _processes(running):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        spent[kind] += sum(map(int, fields[11:15])) / _TICKS
    return spent


def _memory_mib(running: Cluster) -> dict[str, float]:
    """Return the proportional set size by component, in MiB; the largest one of kubelets and agents."""
    weights: dict[str, float] = {}
    for kind, pid in _processes(running):
        weights[kind] = max(weights.get(kind, 0.0), round(memory_mib(pid), 1))
    return weights


def _ratio(plain: Placed, gpu: Placed) -> float:
    return gpu.per_second / plain.per_second


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(figure, 1) for name, figure in figures.items()}
