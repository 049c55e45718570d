"""Cluster Autoscaler with its provider `kwok`, beside slices: which waiting pods bring a node, and which do not."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from egpu.api import names
from egpu.laptop.cluster import Cluster
from egpu_base.kubernetes import Client
from support.neighbour_programs import Neighbour, Probe
from support.new_machines import SLICES, events, filled, made, make, remove
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
ARGUMENTS = (
    "--cloud-provider=kwok",
    "--kubeconfig={kubeconfig}",
    "--address={health}",
    "--namespace=default",
    "--leader-elect=false",
    "--unremovable-node-recheck-timeout=2s",
    "--scan-interval=2s",
    "--scale-down-delay-after-add=2s",
    "--scale-down-unneeded-time=4s",
    "--scale-down-unready-time=4s",
)
AUTOSCALER = Neighbour("cluster-autoscaler", arguments=ARGUMENTS, probe=Probe("/health-check"))
MAPS = "/api/v1/namespaces/default/configmaps"
KIND = "node.kubernetes.io/instance-type"
GROUP = f"{KIND}=two-cards"
TOLERATES = [{"key": "kwok-provider", "operator": "Exists"}]
"""The provider's taint."""


def template(name: str, slices: dict[str, str]) -> dict[str, Any]:
    """A node of a group that has none yet."""
    room = {"cpu": "16", "memory": "64Gi", "pods": "110", **slices}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {KIND: name}, "annotations": {"note": "a template"}},
        "status": {
            "allocatable": room,
            "capacity": room,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


@pytest_asyncio.fixture(loop_scope="package")
async def settings(client: Client) -> AsyncIterator[None]:
    """The provider's example, and its groups: one with slices, and one without."""
    groups = {"kind": "List", "apiVersion": "v1", "items": [template("two-cards", dict(SLICES)), template("plain", {})]}
    (example,) = AUTOSCALER.example("static_nodegroups_config.yaml")
    data = {
        "kwok-provider-config": {"config": yaml.safe_dump(example)},
        "kwok-provider-templates": {"templates": yaml.safe_dump(groups)},
    }
    for name, one in data.items():
        await client.raw("POST", MAPS, body={"metadata": {"name": name}, "data": one})
    yield
    for name in data:
        await client.raw("DELETE", f"{MAPS}/{name}")


async def test_sums_decide_and_one_node_comes_and_goes(
    running: Cluster, client: Client, tmp_path: Path, settings: None
):
    """With 80 % free on each node and 40 % on each card, a pod of 70 % brings no node, and one of 90 % brings one. Of
    300 % no group can give. The new node has no agent, so the pods go on waiting; when no pod is left, it goes."""
    async with filled(client), AUTOSCALER.running(running, client, tmp_path):
        await make(client, "between", 70, group="between", tolerations=TOLERATES)
        await make(client, "huge", 300, group="huge", tolerations=TOLERATES)
        await make(client, "more", 90, group="more", tolerations=TOLERATES)

        async def told(pod: str, reason: str) -> bool:
            return bool(await events(client, pod, reason))

        await until(lambda: told("more", "TriggeredScaleUp"), seconds=120)
        await until(lambda: told("huge", "NotTriggerScaleUp"), seconds=120)
        assert f"Insufficient {names.GPU_CORE}" in (await events(client, "huge", "NotTriggerScaleUp"))[0]
        await until(lambda: _one(client), seconds=120)
        assert await made(client, f"{KIND}=plain") == []
        for reason in ("TriggeredScaleUp", "NotTriggerScaleUp"):
            assert await events(client, "between", reason) == [], "for the autoscaler it fits an existing node"
        for group in ("more", "between", "huge"):  # the new node stays for one that waits
            await remove(client, group)
        await until(lambda: _none(client), "the idle node goes", seconds=120)


async def _one(client: Client) -> bool:
    return len(await made(client, GROUP)) == 1


async def _none(client: Client) -> bool:
    return not await made(client, GROUP)
