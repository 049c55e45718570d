"""Karpenter with its provider `kwok`, beside slices: which waiting pods bring a node, and where it finds our names."""

from pathlib import Path
from typing import Any

import pytest

from egpu.api import names
from egpu.laptop.cluster import Cluster
from egpu_base.kubernetes import Client
from support.neighbour_programs import Json, Neighbour, Probe
from support.new_machines import SLICES, events, filled, made, make, remove
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
ARGUMENTS = (
    "--health-probe-port={probed}",
    "--metrics-port={port}",
    "--disable-leader-election",
    "--feature-gates=NodeOverlay=true",
)
KARPENTER = Neighbour("karpenter", arguments=ARGUMENTS, probe=Probe("/healthz"))
API = "/apis/karpenter.sh/v1"
CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
OVERLAYS = "/apis/karpenter.sh/v1alpha1/nodeoverlays"
OURS = "karpenter.sh/nodepool=default"
MACHINE = "s-16x-amd64-linux"
"""One of the provider's instance types, without a GPU."""
OVERLAY: Json = {
    "apiVersion": "karpenter.sh/v1alpha1",
    "kind": "NodeOverlay",
    "metadata": {"name": "slices"},
    "spec": {
        "requirements": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [MACHINE]}],
        "capacity": dict(SLICES),
    },
}


async def claims(client: Client) -> list[Json]:
    found: Any = await client.raw("GET", f"{API}/nodeclaims")
    return found["items"]


async def test_an_overlay_makes_karpenter_add_one_node_by_sums(running: Cluster, client: Client, tmp_path: Path):
    """With 80 % free on each node and 40 % on each card, a pod of 70 % brings no node. One of 90 % brings one as soon
    as an overlay says that an instance type has slices. When no pod is left, the node goes."""
    async with filled(client), KARPENTER.running(running, client, tmp_path):
        pool, kind = KARPENTER.example("nodepool.yaml")
        pool["spec"]["disruption"]["consolidateAfter"] = "2s"
        await client.raw("POST", CLASSES, body=kind)
        await client.raw("POST", f"{API}/nodepools", body=pool)
        await make(client, "between", 70, group="between")
        await make(client, "more", 90, group="more")

        async def refused() -> bool:
            return any("no instance type" in one for one in await events(client, "more", "FailedScheduling"))

        await until(refused, "no instance type has slices yet", seconds=120)
        assert await claims(client) == []
        await client.raw("POST", OVERLAYS, body=OVERLAY)

        async def node() -> bool:
            return bool(await made(client, OURS))

        await until(node, lambda: (tmp_path / "manager.log").read_text()[-1500:], seconds=120)
        (claim,) = await claims(client)
        requests = claim["spec"]["resources"]["requests"]
        assert (requests[names.GPU_CORE], requests[names.SLOT]) == ("90", "1"), "the pod of 70 % is not counted"
        (name,) = await made(client, OURS)
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        patch = "application/strategic-merge-patch+json"
        await client.raw("PATCH", f"/api/v1/nodes/{name}/status", body=ready, of=patch)
        await remove(client)

        async def idle_gone() -> bool:
            return not await claims(client) and not await node()

        await until(idle_gone, lambda: (tmp_path / "manager.log").read_text()[-1500:], seconds=120)
        await client.raw("DELETE", f"{OVERLAYS}/slices")
        await client.raw("DELETE", f"{API}/nodepools/default")
        await client.raw("DELETE", f"{CLASSES}/default")
