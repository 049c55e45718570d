"""What an agent costs while its slices do nothing: processor time, from the kernel's account of it."""

import asyncio
import time
from typing import Any

from benchmarks.extender.caller import processor_seconds
from benchmarks.report import Report
from egpu.adapters.kubernetes import Client
from egpu.api import names
from egpu.api.kubernetes import Pod
from egpu.embedded import manifests
from egpu.embedded.cluster import ClusterConfig, cluster

SLICES = 4
SECONDS, QUICK_SECONDS = 30.0, 10.0
SETTLE_SECONDS = 3.0
START_SECONDS = 120.0
GOAL_PERCENT = 0.5


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    seconds = QUICK_SECONDS if report.options.quick else SECONDS
    report.progress(f"an agent with {SLICES} idle slices of one card, {seconds:g} s")
    percent = asyncio.run(_agent_percent(seconds))
    report.table("idle", ("", "% of a core"), [(f"agent, {SLICES} slices", percent)])
    report.verdict(
        f"agent with {SLICES} idle slices", f"{percent:.2f} %", f"≤ {GOAL_PERCENT} %", percent <= GOAL_PERCENT
    )
    return {"agent_percent": round(percent, 3), "slices": SLICES, "seconds": seconds}


async def _agent_percent(seconds: float) -> float:
    async with cluster(ClusterConfig(nodes=1, cards_per_node=1, log_level="warning")) as running:
        async with running.client() as client, asyncio.timeout(START_SECONDS):
            await manifests.create(client, [_pod(f"idle-{number}") for number in range(SLICES)])
            while True:
                if await _all_run(client):
                    break
                await asyncio.sleep(0.2)
        pid = running.fleet.children[f"agent-{running.node_names[0]}"].pid
        assert pid is not None
        await asyncio.sleep(SETTLE_SECONDS)
        before, began = processor_seconds(pid), time.monotonic()
        await asyncio.sleep(seconds)
        return 100 * (processor_seconds(pid) - before) / (time.monotonic() - began)


async def _all_run(client: Client) -> bool:
    return all(pod.status.phase == "Running" for pod in await client.list(Pod, namespace="default"))


def _pod(name: str) -> dict[str, Any]:
    limits = {names.GPU_CORE: "20", names.GPU_MEMORY: "1000"}
    container = {"name": "app", "image": "any", "command": ["sleep", "1000"], "resources": {"limits": limits}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
