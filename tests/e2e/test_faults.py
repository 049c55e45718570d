"""Whatever is killed, paused, rolled over, refused or cut: no card is over-committed, every container is in its slice,
nothing leaks, and no pod fails and no program is interrupted that was not itself struck."""

import asyncio
import contextlib
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import AlreadyExists, ElasticGPUError
from egpu_base.kubernetes import Client
from support import programs
from support.faults import JUMP_SECONDS, Faults
from support.settable_clock import EVERYBODY, SettableClock
from support.storm import Witness, check_container, script
from support.waiting import until

ROUNDS: Final = int(os.environ.get("EGPU_FAULT_ROUNDS", "29"))
"""One of each kind in every run of the suite; `make faults` has many more."""
SEED: Final = int(os.environ.get("EGPU_FAULT_SEED", "1"))
ROUND_SECONDS: Final = 0.5
LEAK_SECONDS: Final = 60.0
PLACES: Final = ("direct", "beside", "remote")


def visitor(number: int) -> dict[str, object]:
    """A bare pod that reports from inside its slice and ends, with the card in its container, with an executor beside
    it, or with one on another node."""
    command = ["sh", "-c", script(0.2)]
    place = PLACES[number % len(PLACES)]
    where = programs.WITHOUT_GPUS if place == "remote" else programs.WITH_GPUS
    name, pool = f"visitor-{number}", place != "direct"
    return programs.pod(name, command, pool=pool, nodeSelector=where, restartPolicy="Never")


async def created(client: Client, pod: dict[str, object]) -> None:
    """Without a webhook no pod is created: whoever makes one tries again, as any controller does."""

    async def once() -> bool:
        try:
            await manifests.create(client, [pod])
        except AlreadyExists:
            return True
        except ElasticGPUError:
            await asyncio.sleep(0.2)
            return False
        return True

    await until(once, "a pod is created")


async def all_succeeded(client: Client, witness: Witness, visitors: list[str]) -> None:
    pods: dict[str, Pod] = {}

    async def done() -> bool:
        pods.update({name: await client.get(Pod, name, namespace="default") for name in visitors})
        failed = [f"{pod.name}: {pod.status.reason} {pod.status.message}"
                  for pod in pods.values() if pod.status.phase == "Failed"]  # fmt: skip
        assert not failed, failed
        return all(pod.status.phase == "Succeeded" for pod in pods.values())

    await until(done, lambda: f"the end of {[one.name for one in pods.values() if not one.finished]}")
    for name in visitors:
        log = await client.text(f"/api/v1/namespaces/default/pods/{name}/log", params={"container": "main"})
        given = witness.allocations[name].containers["main"]
        assert not (wrong := list(check_container(given, log))), f"{name}: {wrong}"


def left(running: Cluster) -> list[Path]:
    """Slots and executors on the nodes."""
    found: list[Path] = []
    for node in running.node_names:
        for folder in ("slots", "executors", "served"):
            found += (running.node_dir(node) / "agent" / folder).glob("[!.]*")
    return found


@pytest.fixture
def clock(tmp_path: Path) -> Generator[SettableClock]:
    """That of every component, which can be set."""
    made = SettableClock(tmp_path)
    with made.environment():
        made.set(EVERYBODY, JUMP_SECONDS)
        assert made.seen() > time.time() + JUMP_SECONDS / 2, "it is what processes see"
        made.set(EVERYBODY, 0)
        yield made


@pytest.mark.timeout(300 + 5 * ROUNDS)
async def test_nothing_but_what_was_struck_notices(clock: SettableClock) -> None:
    config = ClusterConfig(nodes=1, cards_per_node=2, cpu_nodes=1)
    async with cluster(config) as running, running.client() as client:
        await manifests.create(client, programs.steady())
        await until(lambda: programs.computing(running) == len(PLACES), "three programs compute")
        held, witness, faults = len(left(running)), Witness(), Faults(running, SEED, clock)
        watching = asyncio.create_task(witness.watch(client))
        try:
            for number in range(ROUNDS):
                creating = asyncio.create_task(created(client, visitor(number)))
                what = await faults.strike()
                await asyncio.sleep(ROUND_SECONDS)
                await creating
                assert not await programs.interrupted(client), what
            faults.close()
            visitors = [f"visitor-{number}" for number in range(ROUNDS)]
            await all_succeeded(client, witness, visitors)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        assert not witness.problems, "\n".join(sorted(witness.problems))
        assert {name for name, _ in faults.kinds()} <= faults.struck.keys()
        assert faults.refused, "nobody asked the API server anything while it refused"

        for name in visitors:
            await client.delete(Pod, name, namespace="default")
        await until(lambda: len(left(running)) == held, lambda: f"the end of {left(running)}", seconds=LEAK_SECONDS)
        before = programs.gpu_seconds(running)
        await until(lambda: programs.progress(before, programs.gpu_seconds(running)) == len(PLACES), "they compute on")
        assert not await programs.interrupted(client)
