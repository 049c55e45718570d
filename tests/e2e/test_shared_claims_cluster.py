"""Several pods use one claim: together they have what it has, whoever of them comes, goes, or is killed."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.core.placement.cache import rebuild
from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.kubernetes import Event, Pod
from egpu_base.errors import Refused
from egpu_base.kubernetes import Client
from support.claims import a_claim, a_class, using
from support.clearing import clear
from support.resizing import Program, disagreement, given, gpu_ns_of, page_of
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PIECES = 16
"""Of 64 MiB, that the claim has room for."""
TECHNOLOGIES = pytest.mark.parametrize("technology", [names.VCUDA, names.QGPU], ids=["vcuda", "qgpu"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Cluster]:
    async with cluster(ClusterConfig(nodes=2, cards_per_node=1)) as one:
        yield one


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="egpu-shared-", dir="/tmp") as root:
        yield Path(root)


@pytest_asyncio.fixture(loop_scope="module")
async def client(running: Cluster, directory: Path) -> AsyncIterator[Client]:
    """Sees to it that the test leaves no pod, claim or class; no program writes into `directory` then."""
    _ = directory
    async with running.client() as one:
        yield one
        await clear(one)


async def shared(client: Client, technology: str, mode: str = "Immediate", core: int = 30) -> None:
    """A claim `c` of 1024 MiB that several pods may use."""
    klass = a_class("shareable", technology, mode, parameters={"shareable": "true"})
    await manifests.create(client, [klass, a_claim("c", "shareable", core=core)])


async def start(client: Client, directory: Path, *pods: str) -> list[Program]:
    programs = [Program(directory, name) for name in pods]
    await manifests.create(client, [program.pod({}, using("c")) for program in programs])
    for program in programs:
        await until(program.seen, f"{program.name} runs")
    return programs


def pieces(programs: list[Program]) -> int:
    found = [program.seen() for program in programs]
    return sum(one.pieces for one in found if one is not None)


async def hold(programs: list[Program], *wanted: int) -> None:
    """Each asks for so many pieces; together they have all that fit, which all of them see."""
    for program, number in zip(programs, wanted, strict=True):
        program.hold(number)
    together = min(sum(wanted), PIECES)
    free = (PIECES - together) * 64

    def settled() -> bool:
        seen = [program.seen() for program in programs]
        return pieces(programs) == together and {one and one.free_mib for one in seen} == {free}

    await until(settled, lambda: f"{together} pieces, {free} MiB free; {[one.seen() for one in programs]}")
    for _ in range(20):  # and it stays so: whoever did not get all goes on asking
        assert pieces(programs) <= PIECES
        await asyncio.sleep(0.02)


async def allocations_agree(client: Client, *pods: str) -> None:
    """They are on one node and card, and the ledger charges the claim once."""
    found = [await given(client, name) for name in pods]
    assert len({one.cards for one in found if one is not None}) == 1
    objects = await client.list(ElasticGPU), await client.list(Pod), await client.list(ElasticGPUClaim)
    books = rebuild(*objects, await client.list(ElasticGPUClass))
    assert not books.problems()
    claim = await client.get(ElasticGPUClaim, "c", namespace="default")
    held = claim.status.allocation
    assert held is not None
    (share,) = held.container.cards
    assert books.ledger.snapshot()[held.node, share.uuid][:2] == (100 - share.core, 81920 - share.memory_mib)


async def users(client: Client) -> list[str]:
    return (await client.get(ElasticGPUClaim, "c", namespace="default")).status.used_by


@TECHNOLOGIES
async def test_pods_of_one_claim_have_its_memory_together(client: Client, directory: Path, technology: str) -> None:
    await shared(client, technology)
    programs = await start(client, directory, "one", "two", "three")
    await hold(programs, 10, 10, 10)
    await hold(programs, 0, 20, 0)
    await hold(programs, 5, 5, 5)
    await allocations_agree(client, "one", "two", "three")
    await until(lambda: users_are(client, "one/app", "three/app", "two/app"))


async def users_are(client: Client, *expected: str) -> bool:
    return await users(client) == list(expected)


@TECHNOLOGIES
async def test_one_of_them_is_killed_and_the_others_go_on(
    running: Cluster, client: Client, directory: Path, technology: str
) -> None:
    await shared(client, technology, mode="WaitForFirstConsumer")
    _, second, third = programs = await start(client, directory, "one", "two", "three")
    await hold(programs, 6, 6, 2)
    await client.delete(Pod, "one", namespace="default", grace_period_seconds=0)
    left = [second, third]
    await hold(left, 6, 2)  # what the dead one had is free for them, and nothing else changed
    await hold(left, 6, 20)
    running.fleet.children["agent-node-1"].kill()
    running.fleet.children["agent-node-2"].kill()
    await hold(left, 4, 20)
    (fourth,) = await start(client, directory, "four")
    await hold([*left, fourth], 4, 20, 9)
    await client.delete(Pod, "two", namespace="default", grace_period_seconds=0)
    await hold([third, fourth], 20, 0)
    for name in ("three", "four"):
        assert (await client.get(Pod, name, namespace="default")).status.phase == "Running"


@TECHNOLOGIES
async def test_together_they_have_its_part_of_the_cards_time(running: Cluster, client: Client, technology: str) -> None:
    await shared(client, technology, core=40)
    spin = {"name": "app", "image": "any", "command": ["egpu-sample-spin", "--seconds", "600"]}
    spec = {"containers": [spin], "terminationGracePeriodSeconds": 0}
    pods: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": using("c")}, "spec": spec}
        for name in ("spin-1", "spin-2")
    ]
    await manifests.create(client, pods)
    first = await client.get(Pod, "spin-1", namespace="default")
    await until(lambda: users_are(client, "spin-1/app", "spin-2/app"))
    await until(lambda: gpu_ns_of(running, first) > 0, "they work")

    async def percent() -> float:
        began, before = time.monotonic_ns(), gpu_ns_of(running, first)
        await asyncio.sleep(3)
        return 100 * (gpu_ns_of(running, first) - before) / (time.monotonic_ns() - began)

    measured: list[float] = []

    async def within() -> bool:
        measured.append(await percent())
        return abs(measured[-1] - 40) <= 3

    await until(within, lambda: f"40 % of the card's time together: {measured}", seconds=60)
    assert max(measured) <= 43, "never more"


@TECHNOLOGIES
async def test_another_size_of_the_claim_reaches_all_of_them(
    running: Cluster, client: Client, directory: Path, technology: str
) -> None:
    await shared(client, technology)
    programs = await start(client, directory, "one", "two")
    said = ""

    async def has(program: Program, core: int, memory_mib: int) -> bool:
        nonlocal said
        said = await disagreement(running, client, program, "c")
        pod = await client.get(Pod, program.name, namespace="default")
        return not said and page_of(running, pod) == (core, memory_mib)

    for core, memory_mib in ((50, 4096), (20, 512), (30, 2048)):
        spec = {"resources": {"requests": {names.GPU_CORE: core, names.GPU_MEMORY: memory_mib}}}
        await client.patch(ElasticGPUClaim, "c", {"spec": spec}, namespace="default")
        for program in programs:
            await until(lambda one=program, size=(core, memory_mib): has(one, *size), lambda: said)
    (third,) = await start(client, directory, "three")
    await until(lambda: (seen := third.seen()) is not None and seen.total_mib == 2048)


async def test_a_claim_in_use_by_several_goes_with_the_last_of_them(client: Client, directory: Path) -> None:
    await shared(client, names.VCUDA)
    programs = await start(client, directory, "one", "two")
    await client.delete(ElasticGPUClaim, "c", namespace="default")
    late = Program(directory, "late")
    await manifests.create(client, [late.pod({}, using("c"))])
    await until(lambda: waits_because(client, "late", "which is being deleted"))
    await client.delete(Pod, "one", namespace="default", grace_period_seconds=0)
    await until(lambda: users_are(client, "two/app"))
    await hold(programs[1:], 20)
    await client.delete(Pod, "two", namespace="default", grace_period_seconds=0)

    async def gone() -> bool:
        slices = [gpu for gpu in await client.list(ElasticGPU) if gpu.spec.slice]
        return not slices and not await client.list(ElasticGPUClaim, namespace="default")

    await until(gone)


async def waits_because(client: Client, name: str, reason: str) -> bool:
    pod = await client.get(Pod, name, namespace="default")
    told = [event.message for event in await client.list(Event, namespace="default")]
    conditions = [one.message or "" for one in pod.status.conditions or [] if one.type == "PodScheduled"]
    return any(reason in text for text in conditions) and any(reason in text for text in told)


async def test_a_second_pod_waits_where_the_class_lets_one_use_a_claim(client: Client, directory: Path) -> None:
    await manifests.create(client, [a_class("alone", names.VCUDA), a_claim("c", "alone")])
    await start(client, directory, "one")
    second = Program(directory, "two")
    await manifests.create(client, [second.pod({}, using("c"))])
    reason = "which pod default/one uses; its class allows one pod at a time"
    await until(lambda: waits_because(client, "two", reason))
    await client.delete(Pod, "one", namespace="default", grace_period_seconds=0)
    await until(second.seen, "it is the second's turn")


async def test_what_cannot_be_is_refused_when_it_is_made(client: Client) -> None:
    pooled = a_class("pooled", names.POOL, parameters={"shareable": "true"})
    with pytest.raises(Refused, match="does not support several pods on one slice; use one of"):
        await manifests.create(client, [pooled])
    bounds = {"maxCore": "40", "minMemory": "512Mi"}
    await manifests.create(client, [a_class("bounded", names.VCUDA, parameters=bounds)])
    with pytest.raises(Refused, match=r"asks for 50 % of a card; class bounded allows at most 40 % of a card"):
        await manifests.create(client, [a_claim("c", "bounded", core=50)])
    await manifests.create(client, [a_claim("c", "bounded", core=40)])

    async def bound() -> bool:
        return (await client.get(ElasticGPUClaim, "c", namespace="default")).status.phase == "Bound"

    await until(bound)
    less = {"resources": {"requests": {names.GPU_CORE: 40, names.GPU_MEMORY: 256}}}
    with pytest.raises(Refused, match=r"asks for 256 MiB of a card; class bounded allows at least 512 MiB of a card"):
        await client.patch(ElasticGPUClaim, "c", {"spec": less}, namespace="default")
