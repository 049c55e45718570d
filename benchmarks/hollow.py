"""The speed of binding pods on Kubernetes's own control plane, over many nodes that are only objects.

Only with `--kubernetes DIR` (see `egpu_sim.cluster.kubernetes`): unchanged etcd, kube-apiserver and kube-scheduler,
with our webhook, extender and controller beside them, all on this computer. Without kubelets, only the control plane is
measured. kube-scheduler binds plain pods, with at most 50 requests a second by default; the extender binds GPU pods. So
both are measured with the default, and without that limit; and with a kube-scheduler of our own for GPU pods, as is
the default of an installation, and with one for all.
"""

import asyncio
import copy
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from benchmarks.extender.world import World
from benchmarks.placement import Measured, Pairs, Placed, counts, figures_of, show, some_at_once
from benchmarks.report import Report
from egpu.api import names
from egpu.core.schedulers import OWN_SCHEDULER
from egpu.laptop.cluster import OWN_CONFIGURATION, ClusterConfig, without_nodes
from egpu_base.api.kubernetes import Node
from egpu_base.kubernetes import Client
from egpu_sim.cluster.kubernetes import ControlPlane

NODES, PODS = 1000, 700
AT_ONCE = 32
SETTLE_SECONDS = 20.0
UNLIMITED = 5000.0
"""Requests a second."""
PUBLISHED: Final = {names.SLOT: "800", names.GPU_CORE: "800", names.GPU_MEMORY: str(8 * 46_068)}
Json = dict[str, Any]
Mode = Literal["own", "existing"]
"""Where GPU pods go: to a kube-scheduler of our own, or to the only one."""


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    programs = report.options.kubernetes
    if programs is None:
        report.progress("left out: it needs Kubernetes's own programs (--kubernetes DIR)")
        return {}
    nodes, pods = (NODES // 10, PODS // 3) if report.options.quick else (NODES, PODS)
    found: Pairs = {}
    modes: tuple[Mode, ...] = ("own", "existing")
    for what, qps in (("50 requests a second", None), ("no limit", UNLIMITED)):
        for mode in modes:
            case = f"{mode} scheduler, {what}"
            report.progress(f"{nodes} nodes of 8 cards, {pods} pods of each kind: {case}")
            found[case] = asyncio.run(_measured(programs, nodes, pods, mode, qps))
    show(report, found, f"{nodes} nodes on Kubernetes's own control plane: ")
    return {"nodes": nodes, "pods": pods, **figures_of(found)}


async def _measured(programs: Path, nodes: int, pods: int, mode: Mode, qps: float | None) -> tuple[Placed, Placed]:
    """Measure. `qps`: the kube-schedulers' limit of requests a second; None: its default."""
    config = ClusterConfig(kubernetes=programs, scheduler=mode, log_level="warning")
    async with without_nodes(config) as running, running.client() as client:
        assert isinstance(running.plane, ControlPlane)
        # Its controllers would find that no kubelet writes for the nodes.
        await running.plane.fleet.stop(["kube-controller-manager"])
        if qps is not None:
            await _limit(running.plane.directory / "scheduler.yaml", qps)
            running.plane.fleet.children["kube-scheduler"].kill()
            if mode == "own":
                await _limit(running.state_dir / OWN_CONFIGURATION, qps)
                running.fleet.children[OWN_SCHEDULER].kill()
        await fill(client, World(nodes, running=0))
        await asyncio.sleep(SETTLE_SECONDS)
        async with counts(running, client) as (bound, _):
            await Measured(running, client, pods // 5, AT_ONCE).pair("warm", bound)
            return await Measured(running, client, pods, AT_ONCE).pair("hollow", bound)


async def _limit(file: Path, qps: float) -> None:
    configuration = yaml.safe_load(await asyncio.to_thread(file.read_text))
    configuration["clientConnection"] |= {"qps": qps, "burst": int(qps)}
    await asyncio.to_thread(file.write_text, yaml.safe_dump(configuration))


async def fill(client: Client, world: World) -> None:
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

    await some_at_once(AT_ONCE, (node(one) for one in world.nodes))
    await some_at_once(AT_ONCE, (card(one) for one in world.cards))


def _bare(one: Json) -> Json:
    """Return the object as a user creates it."""
    made = copy.deepcopy(one)
    for key in ("uid", "resourceVersion"):
        del made["metadata"][key]
    return made
