"""What an agent and a serving daemon cost while nothing is done, beside processes that do nothing but wait: processor
time, from the kernel's account of it."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import Any, Final

from benchmarks.extender.caller import processor_seconds
from benchmarks.report import Report
from egpu.adapters.kubernetes import Client
from egpu.adapters.pool.client import PoolClient, parse_address
from egpu.adapters.pool.security import Credentials
from egpu.adapters.processes import descendants
from egpu.api import names
from egpu.api.kubernetes import Pod
from egpu.embedded import manifests
from egpu.embedded.cluster import ClusterConfig, cluster
from support.local_pool import local_pool

SLICES: Final = 4
LEASES, QUICK_LEASES = 1000, 100
AT_ONCE: Final = 25
CARDS: Final = 16
SECONDS, QUICK_SECONDS = 20.0, 10.0
SETTLE_SECONDS, QUICK_SETTLE_SECONDS = 25.0, 5.0
"""What looks more and more seldom while nothing is done looks as seldom as it ever does after so long."""
START_SECONDS: Final = 120.0
END_SECONDS: Final = 60.0
RENEW_SECONDS: Final = 8.0
GOAL_PERCENT, DAEMON_GOAL_PERCENT = 0.5, 3.0
WAITING_PYTHON: Final = (sys.executable, "-c", "import asyncio; asyncio.run(asyncio.Event().wait())")
WAITING_C: Final = ("sleep", "infinity")


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    leases = QUICK_LEASES if report.options.quick else LEASES
    agent, daemon = f"agent, {SLICES} idle slices", f"serving daemon, {leases} idle leases"
    goals = {agent: GOAL_PERCENT, daemon: DAEMON_GOAL_PERCENT}
    found = asyncio.run(_measured(report, agent, daemon, leases))
    rows = [(what, f"{goals[what]:g}" if what in goals else "", f"{found[what]:.3f}") for what in found]
    report.table("idle, % of a core", ("", "goal at most", "figure"), rows)
    for what, goal in goals.items():
        report.verdict(what, f"{found[what]:.2f} %", f"≤ {goal} %", found[what] <= goal)
    return {"percent": {what: round(percent, 3) for what, percent in found.items()}, "leases": leases, "slices": SLICES}


async def _measured(report: Report, agent: str, daemon: str, leases: int) -> dict[str, float]:
    """Percent of a core, all of them at the same time."""
    quick = report.options.quick
    settle, seconds = (QUICK_SETTLE_SECONDS, QUICK_SECONDS) if quick else (SETTLE_SECONDS, SECONDS)
    async with contextlib.AsyncExitStack() as stack:
        report.progress(f"a node with {SLICES} slices of one card")
        pids = {agent: [await stack.enter_async_context(_agent())]}
        report.progress(f"a serving daemon with {leases} leases")
        serving = await stack.enter_async_context(_daemon(leases))
        pids |= {daemon: [serving], f"its {leases} executors": [child.pid for child in descendants(serving)]}
        pids["floor: asyncio that waits"] = [stack.enter_context(_process(WAITING_PYTHON))]
        pids["floor: a program in C that waits"] = [stack.enter_context(_process(WAITING_C))]
        report.progress(f"{settle:g} s until they rest, then {seconds:g} s")
        await asyncio.sleep(settle)
        return await _percent(pids, seconds)


async def _percent(pids: Mapping[str, Sequence[int]], seconds: float) -> dict[str, float]:
    before, began = {what: _spent(each) for what, each in pids.items()}, time.monotonic()
    await asyncio.sleep(seconds)
    return {what: 100 * (_spent(each) - before[what]) / (time.monotonic() - began) for what, each in pids.items()}


def _spent(pids: Sequence[int]) -> float:
    return sum(map(processor_seconds, pids))


@contextlib.contextmanager
def _process(command: Sequence[str]) -> Generator[int]:
    with subprocess.Popen(command) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@contextlib.asynccontextmanager
async def _daemon(leases: int) -> AsyncGenerator[int]:
    """The pid of a daemon whose leases are held, and renewed, by a program that does nothing with them."""
    with local_pool(tls=False) as pool:
        await asyncio.to_thread(pool.broker)
        await asyncio.to_thread(pool.serve, "one", CARDS)
        address = parse_address(f"127.0.0.1:{pool.port}", "--broker")
        client = await PoolClient.connect(address, Credentials(secret_file=pool.directory / "secret"))
        held: list[str] = []
        renewing = asyncio.create_task(_renew(client, held))
        try:
            for first in range(0, leases, AT_ONCE):
                held += await asyncio.gather(*(_lease(client, str(first + each)) for each in range(AT_ONCE)))
            yield pool.processes["one"].pid
        finally:
            renewing.cancel()
            pool.processes["one"].send_signal(signal.SIGINT)  # it ends its executors itself
            await asyncio.to_thread(pool.processes["one"].wait, END_SECONDS)
            await client.close()


async def _lease(client: PoolClient, request: str) -> str:
    granted = await client.acquire(request=request, holder=f"pod:{request}", cards=1, core=1, memory_mib=1000)
    return granted.lease.lease


async def _renew(client: PoolClient, held: Sequence[str]) -> None:
    while True:
        for lease in tuple(held):
            await client.renew(lease)
        await asyncio.sleep(RENEW_SECONDS)


@contextlib.asynccontextmanager
async def _agent() -> AsyncGenerator[int]:
    """The pid of the agent of a node, once the slices of its pods run."""
    async with cluster(ClusterConfig(nodes=1, cards_per_node=1, log_level="warning")) as running:
        async with running.client() as client, asyncio.timeout(START_SECONDS):
            await manifests.create(client, [_pod(f"idle-{number}") for number in range(SLICES)])
            while True:
                if await _all_run(client):
                    break
                await asyncio.sleep(0.2)
        pid = running.fleet.children[f"agent-{running.node_names[0]}"].pid
        assert pid is not None
        yield pid


async def _all_run(client: Client) -> bool:
    return all(pod.status.phase == "Running" for pod in await client.list(Pod, namespace="default"))


def _pod(name: str) -> dict[str, Any]:
    limits = {names.GPU_CORE: "20", names.GPU_MEMORY: "1000"}
    container = {"name": "app", "image": "any", "command": ["sleep", "1000"], "resources": {"limits": limits}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
