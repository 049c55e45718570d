"""The cost of an idle agent and an idle serving daemon, beside processes that only wait: processor time, by the
kernel's account."""

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
from egpu.adapters.pool.client import PoolClient, parse_address
from egpu.adapters.pool.security import Credentials
from egpu.api import names
from egpu.laptop import manifests
from egpu.laptop.cluster import ClusterConfig, cluster
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from egpu_base.system.processes import descendants
from support.forked_commands import Running
from support.local_pool import local_pool

SLICES: Final = 4
LEASES, QUICK_LEASES = 1000, 100
AT_ONCE: Final = 25
CARDS: Final = 16
SECONDS, QUICK_SECONDS = 20.0, 10.0
SETTLE_SECONDS, QUICK_SETTLE_SECONDS = 25.0, 5.0
"""The time after which idle loops look as seldom as they ever do."""
START_SECONDS: Final = 120.0
END_SECONDS: Final = 60.0
RENEW_SECONDS: Final = 8.0
GOAL_PERCENT, DAEMON_GOAL_PERCENT = 0.5, 3.0
GOAL_END_SECONDS: Final = 15.0
WAITING_PYTHON: Final = (sys.executable, "-c", "import asyncio; asyncio.run(asyncio.Event().wait())")
WAITING_C: Final = ("sleep", "infinity")


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    leases = QUICK_LEASES if report.options.quick else LEASES
    agent, daemon = f"agent, {SLICES} idle slices", f"serving daemon, {leases} idle leases"
    goals = {agent: GOAL_PERCENT, daemon: DAEMON_GOAL_PERCENT}
    found, end_seconds = asyncio.run(_measured(report, agent, daemon, leases))
    rows = [(what, f"{goals[what]:g}" if what in goals else "", f"{found[what]:.3f}") for what in found]
    report.table("idle, % of a core", ("", "goal at most", "figure"), rows)
    for what, goal in goals.items():
        report.verdict(what, f"{found[what]:.2f} %", f"≤ {goal} %", found[what] <= goal)
    ends = f"end of a daemon with {leases} leases"
    report.verdict(ends, f"{end_seconds:.1f} s", f"≤ {GOAL_END_SECONDS:g} s", end_seconds <= GOAL_END_SECONDS)
    percent = {what: round(percent, 3) for what, percent in found.items()}
    return {"percent": percent, "end_seconds": round(end_seconds, 1), "leases": leases, "slices": SLICES}


async def _measured(report: Report, agent: str, daemon: str, leases: int) -> tuple[dict[str, float], float]:
    """Return percent of a core, all measured at the same time, and the seconds in which the daemon ended."""
    quick = report.options.quick
    settle, seconds = (QUICK_SETTLE_SECONDS, QUICK_SECONDS) if quick else (SETTLE_SECONDS, SECONDS)
    async with contextlib.AsyncExitStack() as stack:
        report.progress(f"a node with {SLICES} slices of one card")
        pids = {agent: [await stack.enter_async_context(_agent())]}
        report.progress(f"a serving daemon with {leases} leases")
        serving = await stack.enter_async_context(_daemon(leases))
        pids[daemon] = [serving.pid]
        pids["floor: asyncio that waits"] = [stack.enter_context(_process(WAITING_PYTHON))]
        pids["floor: a program in C that waits"] = [stack.enter_context(_process(WAITING_C))]
        report.progress(f"{settle:g} s until they rest, then {seconds:g} s")
        await asyncio.sleep(settle)
        # Now, since processes that only start others have ended.
        pids[f"its {leases} executors"] = [child.pid for child in descendants(serving.pid)]
        found = await _percent(pids, seconds)
        report.progress("the daemon's end")
        return found, await asyncio.to_thread(_end, serving)


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
async def _daemon(leases: int) -> AsyncGenerator[Running]:
    """Run a daemon whose leases a program holds and renews without using them."""
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
            yield pool.processes["one"]
        finally:
            renewing.cancel()
            await asyncio.to_thread(_end, pool.processes["one"])
            await client.close()


def _end(serving: Running) -> float:
    """End a daemon and its executors; return the seconds that it took."""
    began = time.monotonic()
    serving.send_signal(signal.SIGINT)
    serving.wait(END_SECONDS)
    return time.monotonic() - began


async def _lease(client: PoolClient, request: str) -> str:
    granted = await client.acquire(request=request, holder=f"pod:{request}", cards=1, core=1, memory_mib=1000)
    return granted.lease.lease


async def _renew(client: PoolClient, held: Sequence[str]) -> None:
    while True:
        for first in range(0, len(held), AT_ONCE):
            await asyncio.gather(*map(client.renew, held[first : first + AT_ONCE]))
        await asyncio.sleep(RENEW_SECONDS)


@contextlib.asynccontextmanager
async def _agent() -> AsyncGenerator[int]:
    """Run the agent of a node; yield its pid once the slices of its pods run."""
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
