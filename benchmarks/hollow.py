"""How fast pods are bound on Kubernetes's own control plane, over many nodes that are nothing but objects.

Only with `--kubernetes DIR` (see `egpu.embedded.kubernetes`). etcd, kube-apiserver and kube-scheduler as they come, our
webhook, extender and controller beside them, all on this computer; no kubelets, so nothing but the control plane is
measured. Plain pods are bound by kube-scheduler, which sends no more than 50 requests a second unless it is told
otherwise; the extender binds GPU pods. So both are measured as it comes, and without that limit.
"""

import asyncio
import contextlib
import copy
import tempfile
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.extender.world import World
from benchmarks.placement import GOAL_RATIO, Placed, ratio, spent_seconds
from benchmarks.report import Report
from egpu.adapters.kubernetes import Client, Reflector
from egpu.api import names
from egpu.api.kubernetes import Node, Pod
from egpu.embedded import kubernetes, manifests
from egpu.embedded.apiserver.access import service_account
from egpu.embedded.cluster import NAMESPACE, WEBHOOK_SERVICE, Addresses, Cluster, ClusterConfig, component_specs
from egpu.embedded.credentials import extender_credentials
from egpu.embedded.installation import install
from egpu.embedded.ports import ports
from egpu.embedded.processes import Fleet

NODES, PODS = 1000, 700
AT_ONCE = 32
SETTLE_SECONDS = 20.0
DEADLINE_SECONDS = 300.0
UNLIMITED = 5000.0
"""Requests a second."""
GPU: Final = {names.GPU_CORE: "10", names.GPU_MEMORY: "4096"}
PUBLISHED: Final = {names.SLOT: "800", names.GPU_CORE: "800", names.GPU_MEMORY: str(8 * 46_068)}
Json = dict[str, Any]


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    programs = report.options.kubernetes
    if programs is None:
        report.progress("left out: it needs Kubernetes's own programs (--kubernetes DIR)")
        return {}
    nodes, pods = (NODES // 10, PODS // 3) if report.options.quick else (NODES, PODS)
    figures: dict[str, Any] = {"nodes": nodes, "pods": pods}
    for what, qps in (("50 requests a second", None), ("no limit", UNLIMITED)):
        report.progress(f"{nodes} nodes of 8 cards, {pods} pods of each kind, kube-scheduler with {what}")
        plain, gpu = asyncio.run(_measured(programs, nodes, pods, qps))
        found = ratio(plain, gpu)
        title = f"{nodes} nodes on Kubernetes's own control plane, kube-scheduler with {what}"
        rows = [(name, plain.processor_ms[name], gpu.processor_ms[name]) for name in gpu.processor_ms]
        sums = ("all", sum(plain.processor_ms.values()), sum(gpu.processor_ms.values()))
        bound = ("pods bound a second", plain.per_second, gpu.per_second)
        report.table(f"{title}: pods a second, and processor ms a pod", ("", "plain", "GPU"), [bound, *rows, sums])
        goal = f"at least {GOAL_RATIO:g}"
        report.verdict(f"GPU pods to plain pods, {nodes} nodes, {what}", f"{found:.2f}", goal, found >= GOAL_RATIO)
        figures[what] = {
            "plain_pods_per_second": round(plain.per_second, 1),
            "gpu_pods_per_second": round(gpu.per_second, 1),
            "plain_processor_ms": round(sum(plain.processor_ms.values()), 1),
            "gpu_processor_ms": round(sum(gpu.processor_ms.values()), 1),
        }
    return figures


async def _measured(programs: Path, nodes: int, pods: int, qps: float | None) -> tuple[Placed, Placed]:
    async with _control_plane(programs, qps) as running, running.client() as client:
        await _fill(client, World(nodes, running=0))
        await asyncio.sleep(SETTLE_SECONDS)
        known = Reflector(client, Pod)
        following = asyncio.create_task(known.run())
        await known.synced.wait()
        try:
            for kind, limits in ({"warm-plain": {}, "warm-gpu": GPU}).items():
                await _placed(running, client, known, kind, limits, pods // 5)
            plain = await _placed(running, client, known, "plain", {}, pods)
            return plain, await _placed(running, client, known, "gpu", GPU, pods)
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following


@contextlib.asynccontextmanager
async def _control_plane(programs: Path, qps: float | None) -> AsyncGenerator[Cluster, None]:
    """Kubernetes's programs and our own, and no node. Without its controllers, which would find that no kubelet writes
    for the nodes."""
    with tempfile.TemporaryDirectory(prefix="egpu-hollow-") as directory, ports() as taken:
        state_dir = Path(directory)
        addresses, credentials = Addresses(taken.take(), taken.take()), extender_credentials(state_dir / "extender-pki")
        users = {
            name: service_account(NAMESPACE, f"elastic-gpu-{name}") for name in ("webhook", "extender", "controller")
        }
        async with kubernetes.control_plane(
            programs, state_dir, users, taken, extender=f"127.0.0.1:{addresses.extender}", pki=credentials.directory,
            pid_dir=state_dir / "pids",
        ) as plane:  # fmt: skip
            await plane.fleet.stop(["kube-controller-manager"])
            if qps is not None:
                file = plane.directory / "scheduler.yaml"
                configuration = yaml.safe_load(await asyncio.to_thread(file.read_text))
                configuration["clientConnection"] |= {"qps": qps, "burst": int(qps)}
                await asyncio.to_thread(file.write_text, yaml.safe_dump(configuration))
                plane.fleet.children["kube-scheduler"].kill()
            config, fleet = ClusterConfig(log_level="warning", kubernetes=programs), Fleet(state_dir / "pids")
            running = Cluster(config, state_dir, plane, fleet, (), addresses.extender_url, credentials, taken)
            async with running.client() as client:
                await install(client, webhook_port=addresses.webhook)
                await plane.lead_to_loopback(client, NAMESPACE, WEBHOOK_SERVICE)
            try:
                await fleet.start(component_specs(running, [], addresses))
                await asyncio.sleep(SETTLE_SECONDS)
                yield running
            finally:
                await fleet.stop()


async def _fill(client: Client, world: World) -> None:
    """Make the nodes and cards."""

    async def node(one: Json) -> None:
        status = copy.deepcopy(one["status"])
        for kind in ("capacity", "allocatable"):
            status[kind] |= PUBLISHED
        made = _bare(one)
        name = made["metadata"]["name"]
        await client.raw("POST", "/api/v1/nodes", body=made)
        await client.patch(Node, name, {"status": status}, subresource="status")
        await client.patch(Node, name, {"spec": {"taints": None}})  # a new node is not ready yet

    async def card(one: Json) -> None:
        await client.raw("POST", "/apis/elasticgpu.io/v1alpha1/elasticgpus", body=_bare(one))

    await _some_at_once(node(one) for one in world.nodes)
    await _some_at_once(card(one) for one in world.cards)


def _bare(one: Json) -> Json:
    """As somebody creates it."""
    made = copy.deepcopy(one)
    for key in ("uid", "resourceVersion"):
        del made["metadata"][key]
    return made


async def _some_at_once(work: Iterable[Coroutine[Any, Any, Any]]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(each: Coroutine[Any, Any, Any]) -> None:
        async with gate:
            await each

    await asyncio.gather(*map(one, work))


async def _placed(
    running: Cluster, client: Client, known: Reflector[Pod], prefix: str, limits: Mapping[str, str], count: int
) -> Placed:
    """Create pods; from the first creation to the last binding. They are gone when it returns."""
    container: Json = {"name": "c", "image": "any", "resources": {"limits": dict(limits)}}
    spec: Json = {"containers": [container]}
    pods: list[Json] = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{prefix}-{number}"}, "spec": spec}
        for number in range(count)
    ]

    def bound() -> int:
        return sum(one.name.startswith(f"{prefix}-") and bool(one.spec.node_name) for one in known)

    began, before = time.monotonic(), spent_seconds(running)
    await _some_at_once(manifests.create(client, [pod]) for pod in pods)
    while bound() < count:
        if time.monotonic() - began > DEADLINE_SECONDS:
            raise TimeoutError(f"{bound()} of {count} {prefix} pods were bound within {DEADLINE_SECONDS:g} s")
        await asyncio.sleep(0.05)
    seconds, after = time.monotonic() - began, spent_seconds(running)
    await _some_at_once(
        client.delete(Pod, pod["metadata"]["name"], namespace="default", grace_period_seconds=0) for pod in pods
    )
    return Placed(count / seconds, {name: (after[name] - before[name]) * 1000 / count for name in after})
