"""The storm: many pods at once on four nodes of four cards, in peace and while components are killed; and rounds of
pods with resource names and with ResourceClaims, on nodes whose cards the extender or kube-scheduler gives out. In the
rounds, less important pods with ResourceClaims have the extender's cards at first, and are evicted."""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from egpu.api import names
from egpu.api.allocation import ContainerAllocation
from egpu.api.objects import ElasticGPU, ElasticGPUClaim
from egpu.core.placement.cache import rebuild
from egpu.laptop import manifests as files
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import ElasticGPUError
from egpu_base.kubernetes import Client
from support import claim_storm
from support.claim_storm import ClaimRecords, claims_given_back, is_victim
from support.long import or_long
from support.storm import CARDS_PER_NODE, Witness, check_container, manifests
from support.waiting import until

SEEDS = [int(seed) for seed in os.environ.get("EGPU_STORM_SEEDS", "11").split(",")]
"""One in every run of the suite; more by EGPU_STORM_SEEDS=11,12,13."""

ROUNDS = int(os.environ.get("EGPU_STORM_ROUNDS", or_long("1", "2")))
"""Rounds with ResourceClaims, each with its own seed."""

STORM_SECONDS = 240.0
KILLED_KINDS = ("extender", "agent", "controller", "kubelet")
PODS = or_long(30, 60)
MOST_KILLS = or_long(12, 60)
"""Then what is left must end in peace: after an error the scheduler looks at a pod again after up to ten seconds, as
kube-scheduler does, and would find the extender dead again and again if it were killed about as often."""
"""Not the webhook: without admission no pod is created, which is what failurePolicy Fail is for."""

GIVEN_BACK_SECONDS = 40.0
PODS_OF_A_ROUND, CLAIM_PODS_OF_A_ROUND, KILLS_OF_A_ROUND = or_long((8, 16, 4), (12, 24, 8))
VICTIMS_OF_A_ROUND = 8
"""As many as priced nodes have cards: each more important pod there has to evict some of them."""


async def _until_done(client: Client, count: int) -> list[Pod]:
    pods: list[Pod] = []

    async def finished() -> bool:
        with contextlib.suppress(ElasticGPUError):
            pods[:] = [pod for pod in await client.list(Pod, namespace="default") if not is_victim(pod)]
        return len(pods) == count and all(pod.finished for pod in pods)

    def waiting() -> str:
        return f"the end of {[f'{pod.name}: {_state(pod)}' for pod in pods if not pod.finished]}"

    try:
        await until(finished, waiting, seconds=STORM_SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await _events(client, pods)}") from error
    return pods


async def _events(client: Client, pods: Sequence[Pod]) -> str:
    """Return what was said about the pods that have not ended."""
    left = {pod.uid for pod in pods if not pod.finished}
    found: Any = await client.raw("GET", "/api/v1/namespaces/default/events")
    about = [one for one in found["items"] if one["involvedObject"].get("uid") in left]
    return "\n".join(f"{one['involvedObject']['name']}: {one['reason']}: {one['message']}" for one in about)


def _state(pod: Pod) -> str:
    reasons = [one.message for one in pod.status.conditions or [] if one.status == "False" and one.message]
    waiting = [
        status.state.waiting.message or status.state.waiting.reason
        for status in pod.status.container_statuses or []
        if status.state is not None and status.state.waiting is not None
    ]
    return f"{pod.status.phase} on {pod.spec.node_name or 'no node'}: {'; '.join(reasons + waiting)}"


async def _check_pods(
    client: Client, pods: list[Pod], gpus: Sequence[ElasticGPU], witness: Witness, claims: ClaimRecords
) -> None:
    for pod in pods:
        assert pod.status.phase == "Succeeded", f"{pod.name}: {pod.status}"
        if pod.spec.resource_claims:
            given = claims.given(pod, gpus)
            assert given.keys() == {container.name for container in pod.all_containers}
            await _check_logs(client, pod, given)
            continue
        allocation = witness.allocations[pod.name]
        demanding = {
            container.name
            for container in pod.all_containers
            if container.resources is not None and names.SLOT in (container.resources.limits or {})
        }
        assert set(allocation.containers) == demanding
        await _check_logs(client, pod, allocation.containers)


async def _start_victims(client: Client, victims: Sequence[dict[str, Any]]) -> None:
    """Create the victims, and wait until all run."""
    await asyncio.gather(*(files.create(client, [pod]) for pod in victims))
    pods: list[Pod] = []

    async def run() -> bool:
        pods[:] = await client.list(Pod, namespace="default")
        return [pod.status.phase for pod in pods] == ["Running"] * len(victims)

    await until(run, lambda: f"victims run: {[f'{pod.name}: {_state(pod)}' for pod in pods]}", seconds=STORM_SECONDS)


async def _check_victims(client: Client, gpus: Sequence[ElasticGPU], records: ClaimRecords) -> int:
    """Check that the victims that were not evicted are still in their slices; return how many these are."""
    left = [pod for pod in await client.list(Pod, namespace="default") if is_victim(pod)]
    for pod in left:
        if pod.metadata.deletion_timestamp is None:
            assert pod.status.phase == "Running", f"{pod.name}: {pod.status}"
            await _check_logs(client, pod, records.given(pod, gpus))
    return sum(pod.metadata.deletion_timestamp is None for pod in left)


async def _check_logs(client: Client, pod: Pod, given: Mapping[str, ContainerAllocation]) -> None:
    for container, allocation in given.items():
        path = f"/api/v1/namespaces/default/pods/{pod.name}/log"
        log = await client.text(path, params={"container": container})
        wrong = list(check_container(allocation, log))
        assert not wrong, f"{pod.name}/{container}: {wrong}"


async def _check_given_back(running: Cluster, client: Client) -> None:
    """Nothing is held by anybody: not in the ledger, not on the nodes, not among the processes."""
    pods, gpus = list(await client.list(Pod)), list(await client.list(ElasticGPU))
    cache = rebuild(gpus, pods, await client.list(ElasticGPUClaim))
    assert not cache.ledger.holders()
    assert all(free[:1] == (100,) for free in cache.ledger.snapshot().values())
    for pod in pods:
        await client.delete(Pod, pod.name, namespace=pod.namespace)
    await until(
        lambda: not _left_on_nodes(running),
        lambda: f"nodes give back {_left_on_nodes(running)[:10]}",
        seconds=GIVEN_BACK_SECONDS,
    )
    await claims_given_back(running, client)


def _left_on_nodes(running: Cluster) -> list[str]:
    left: list[str] = []
    for node in running.node_names:
        home = running.node_dir(node)
        try:
            left += [str(path) for path in (home / "agent" / "slots").glob("[!.]*/policy")]
            left += [str(path) for path in (home / "kubelet" / "run").glob("*/*/*/pid") if _alive(path)]
        except FileNotFoundError as error:  # it is being given back while we look
            left.append(str(error.filename))
    return left


def _alive(pid_file: Path) -> bool:
    try:
        pid = int(pid_file.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return False
    return Path(f"/proc/{pid}").exists()


async def _kill_at_random(running: Cluster, rng: random.Random, killed: list[str], *, most: int) -> None:
    """Each kind of component as often as any other, in a random order; of its instances, any."""
    kinds: list[str] = []
    while len(killed) < most:
        await asyncio.sleep(rng.uniform(0.3, 2.0))
        if not kinds:
            kinds = list(KILLED_KINDS)
            rng.shuffle(kinds)
        kind = kinds.pop()
        name = rng.choice(sorted(name for name in running.fleet.children if name.split("-")[0] == kind))
        if running.fleet.children[name].kill() is not None:
            killed.append(name)


@dataclass
class Struck:
    """The components that were killed, and the number of pods that were evicted."""

    killed: list[str] = field(default_factory=list[str])
    evicted: int = 0


async def _storm(
    running: Cluster, pods: list[dict[str, Any]], *, seed: int, kills: int, victims: Sequence[dict[str, Any]] = ()
) -> Struck:
    struck = Struck()
    witness = Witness()
    async with running.client() as client:
        records = ClaimRecords(client)
        background = [asyncio.create_task(witness.watch(client)), asyncio.create_task(records.watch())]
        try:
            await _start_victims(client, victims)
            await asyncio.gather(*(files.create(client, [pod]) for pod in pods))
            if kills:
                task = _kill_at_random(running, random.Random(seed), struck.killed, most=kills)
                background.append(asyncio.create_task(task))
            done = await _until_done(client, len(pods))
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
        gpus, claims = await client.list(ElasticGPU), await client.list(ElasticGPUClaim)
        witness.look(list(gpus), done, list(claims), [])
        assert not witness.problems, "\n".join(sorted(witness.problems))
        await _check_pods(client, done, gpus, witness, records)
        struck.evicted = len(victims) - await _check_victims(client, gpus, records)
        await _check_given_back(running, client)
    return struck


async def test_many_pods_at_once() -> None:
    async with cluster(ClusterConfig(nodes=4, cards_per_node=CARDS_PER_NODE)) as running:
        await _storm(running, manifests(1, PODS), seed=1, kills=0)
        assert not any(child.restarts for child in running.fleet.children.values())


@pytest.mark.parametrize("seed", SEEDS)
async def test_many_pods_while_components_are_killed(seed: int) -> None:
    async with cluster(ClusterConfig(nodes=4, cards_per_node=CARDS_PER_NODE)) as running:
        killed = (await _storm(running, manifests(seed, PODS), seed=seed, kills=MOST_KILLS)).killed
    kinds = {name.split("-")[0] for name in killed}
    assert kinds == set(KILLED_KINDS), f"the storm was over before enough was killed: {killed}"


@pytest.mark.timeout(120 + ROUNDS * (STORM_SECONDS + 60))
async def test_pods_and_claims_by_both_allocators_while_components_are_killed() -> None:
    killed, evicted = list[str](), 0
    async with cluster(ClusterConfig(nodes=4, cards_per_node=CARDS_PER_NODE)) as running, running.client() as client:
        await claim_storm.prepare(running, client)
        for number in range(ROUNDS):
            seed = SEEDS[0] + number
            pods = [*manifests(seed, PODS_OF_A_ROUND), *claim_storm.pods(seed, CLAIM_PODS_OF_A_ROUND)]
            random.Random(seed).shuffle(pods)
            began = time.monotonic()
            victims = claim_storm.victims(VICTIMS_OF_A_ROUND)
            struck = await _storm(running, pods, seed=seed, kills=KILLS_OF_A_ROUND, victims=victims)
            killed += struck.killed
            evicted += struck.evicted
            took = time.monotonic() - began
            print(f"round {number}, seed {seed}: {took:.0f} s; so far {len(killed)} kills, {evicted} evicted")
    assert evicted
    kinds = {name.split("-")[0] for name in killed}
    assert kinds == set(KILLED_KINDS), f"the rounds were over before enough was killed: {killed}"
