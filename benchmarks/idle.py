"""What an agent and a serving daemon cost while nothing is done: processor time, from the kernel's account of it."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.extender.caller import processor_seconds
from benchmarks.report import Report
from egpu.adapters.kubernetes import Client
from egpu.adapters.pool.client import PoolClient, parse_address
from egpu.adapters.pool.security import Credentials
from egpu.api import names
from egpu.api.kubernetes import Pod
from egpu.embedded import manifests
from egpu.embedded.cluster import ClusterConfig, cluster
from support.local_pool import local_pool

SLICES = 4
LEASES, QUICK_LEASES = 1000, 100
CARDS = 16
SECONDS, QUICK_SECONDS = 30.0, 10.0
SETTLE_SECONDS = 3.0
START_SECONDS = 120.0
RENEW_SECONDS = 8.0
GOAL_PERCENT, DAEMON_GOAL_PERCENT = 0.5, 3.0


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    seconds, leases = (QUICK_SECONDS, QUICK_LEASES) if report.options.quick else (SECONDS, LEASES)
    report.progress(f"an agent with {SLICES} idle slices of one card, {seconds:g} s")
    agent = asyncio.run(_agent_percent(seconds))
    report.progress(f"a serving daemon with {leases} idle leases, {seconds:g} s")
    daemon = asyncio.run(_daemon_percent(leases, seconds))
    rows = [(f"agent, {SLICES} slices", agent), (f"serving daemon, {leases} leases", daemon)]
    report.table("idle", ("", "% of a core"), rows)
    for what, percent, goal in (
        (f"agent with {SLICES} idle slices", agent, GOAL_PERCENT),
        (f"serving daemon with {leases} idle leases", daemon, DAEMON_GOAL_PERCENT),
    ):
        report.verdict(what, f"{percent:.2f} %", f"≤ {goal} %", percent <= goal)
    return {
        "agent_percent": round(agent, 3),
        "slices": SLICES,
        "daemon_percent": round(daemon, 3),
        "leases": leases,
        "seconds": seconds,
    }


async def _daemon_percent(leases: int, seconds: float) -> float:
    with local_pool(tls=False) as pool:
        await asyncio.to_thread(pool.broker)
        await asyncio.to_thread(pool.serve, "one", CARDS)
        address = parse_address(f"127.0.0.1:{pool.port}", "--broker")
        client = await PoolClient.connect(address, Credentials(secret_file=pool.directory / "secret"))
        held: list[str] = []
        renewing = asyncio.create_task(_renew(client, held))
        try:
            for number in range(leases):
                one = str(number)
                granted = await client.acquire(request=one, holder=f"pod:{one}", cards=1, core=1, memory_mib=1000)
                held.append(granted.lease.lease)
            await asyncio.sleep(SETTLE_SECONDS)
            return await _percent(pool.processes["one"].pid, seconds)
        finally:
            renewing.cancel()
            await client.close()


async def _renew(client: PoolClient, held: Sequence[str]) -> None:
    while True:
        for lease in tuple(held):
            await client.renew(lease)
        await asyncio.sleep(RENEW_SECONDS)


async def _percent(pid: int, seconds: float) -> float:
    before, began = processor_seconds(pid), time.monotonic()
    await asyncio.sleep(seconds)
    return 100 * (processor_seconds(pid) - before) / (time.monotonic() - began)


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
        return await _percent(pid, seconds)


async def _all_run(client: Client) -> bool:
    return all(pod.status.phase == "Running" for pod in await client.list(Pod, namespace="default"))


def _pod(name: str) -> dict[str, Any]:
    limits = {names.GPU_CORE: "20", names.GPU_MEMORY: "1000"}
    container = {"name": "app", "image": "any", "command": ["sleep", "1000"], "resources": {"limits": limits}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
