"""Running slices get another size: by a pod's annotation and by an edited claim, without a restart of the program."""

import asyncio
import contextlib
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from egpu.adapters.slices.pages import Mode
from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUClaim
from egpu.core.placement.cache import rebuild
from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.kubernetes import Event, Pod
from egpu_base.errors import ElasticGPUError, Refused
from egpu_base.kubernetes import Client
from support.claims import a_claim, a_class, using
from support.clearing import clear
from support.long import or_long
from support.resizing import Program, disagreement, given, gpu_ns_of, line_of, page_of
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEED = int(os.environ.get("EGPU_RESIZE_SEED", "7"))
RESIZES = int(os.environ.get("EGPU_RESIZES", or_long("24", "100")))
KILL_EVERY = 8
CARD_MIB = 81920
VCUDA = {names.GPU_CORE: "30", names.GPU_MEMORY: "1024"}
QGPU = {names.QGPU_CORE: "30", names.QGPU_MEMORY: "1"}
POOL = {names.POOL_CORE: "30", names.POOL_MEMORY: "1024"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Cluster]:
    async with cluster(ClusterConfig(nodes=1, cards_per_node=1, cpu_nodes=1)) as one:
        yield one


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="egpu-resize-", dir="/tmp") as root:
        yield Path(root)


@pytest_asyncio.fixture(loop_scope="module")
async def client(running: Cluster, directory: Path) -> AsyncIterator[Client]:
    """Sees to it that the test leaves no pod, claim or class; no program writes into `directory` then."""
    _ = directory
    async with running.client() as one:
        yield one
        await clear(one)


async def started(client: Client, program: Program, document: dict[str, Any], *more: dict[str, Any]) -> None:
    await manifests.create(client, [*more, document])
    await until(program.seen, f"{program.name} runs", seconds=90)


async def sees(program: Program, *, total_mib: int | None = None, pieces: int | None = None) -> None:
    def so() -> bool:
        seen = program.seen()
        return seen is not None and seen.total_mib == (total_mib or seen.total_mib) and pieces in (None, seen.pieces)

    await until(so, lambda: f"{total_mib} MiB, {pieces} pieces; {program.seen()}", seconds=60)


async def ask(client: Client, pod: str, size: str, **more: str) -> None:
    annotations = {f"{names.RESIZE_PREFIX}app": size, **more}
    await client.patch(Pod, pod, {"metadata": {"annotations": annotations}}, namespace="default")


async def edit(client: Client, claim: str, core: int, memory_mib: int) -> None:
    spec = {"resources": {"requests": {names.GPU_CORE: core, names.GPU_MEMORY: memory_mib}}}
    await client.patch(ElasticGPUClaim, claim, {"spec": spec}, namespace="default")


async def agrees(running: Cluster, client: Client, program: Program, memory_mib: int, claim: str = "") -> None:
    """Everything says the same, and it is what was asked for."""
    problem = ""

    async def settled() -> bool:
        nonlocal problem
        seen = program.seen()
        problem = await disagreement(running, client, program, claim)
        return not problem and seen is not None and seen.total_mib == memory_mib

    await until(settled, lambda: f"{memory_mib} MiB; {problem}", seconds=60)


async def events(client: Client, name: str) -> dict[str, str]:
    found = await client.list(Event, namespace="default")
    return {one.reason: one.message for one in found if one.involved_object.name == name}


@pytest.mark.parametrize("limits", [VCUDA, QGPU, POOL], ids=["vcuda", "qgpu", "pool"])
async def test_a_pod_asks_by_its_annotation_and_its_program_sees_it_at_once(
    running: Cluster, client: Client, directory: Path, limits: dict[str, str]
) -> None:
    program = Program(directory, "asks")
    document = program.pod(limits)
    if limits is POOL:
        document["spec"]["nodeSelector"] = {"kubernetes.io/hostname": running.node_names[-1]}  # without a card
    await started(client, program, document)
    for size, memory_mib in (("core=60, memory=4Gi", 4096), ("memory=512", 512), ("core=20, memory=2Gi", 2048)):
        await ask(client, "asks", size)
        await sees(program, total_mib=memory_mib)
        await agrees(running, client, program, memory_mib)
    container = await given(client, "asks")
    assert container is not None
    assert (container.cards[0].core, container.revision) == (20, 3)
    pod = await client.get(Pod, "asks", namespace="default")
    assert pod.annotations[f"{names.RESIZED_PREFIX}app"] == "20 % and 2048 MiB of card 0"
    assert "Resized" in await events(client, "asks")


@pytest.mark.parametrize("limits", [VCUDA, QGPU], ids=["vcuda", "qgpu"])
async def test_a_running_program_gets_another_share_of_the_cards_time(
    running: Cluster, client: Client, limits: dict[str, str]
) -> None:
    """Measured: how long the card worked for it, of each second, by its usage page."""
    spin = {"name": "app", "image": "any", "command": ["egpu-sample-spin", "--seconds", "600"]}
    spec = {"containers": [spin | {"resources": {"limits": limits}}], "terminationGracePeriodSeconds": 0}
    await manifests.create(client, [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "spins"}, "spec": spec}])
    pod = await client.get(Pod, "spins", namespace="default")
    await until(lambda: gpu_ns_of(running, pod) > 0, "it works", seconds=90)

    async def percent() -> float:
        began, before = time.monotonic_ns(), gpu_ns_of(running, pod)
        await asyncio.sleep(1)
        return 100 * (gpu_ns_of(running, pod) - before) / (time.monotonic_ns() - began)

    for size, least, most in (("core=20", 10, 30), ("core=70", 40, 80), ("core=10", 5, 18)):
        await ask(client, "spins", size)

        async def follows(least: int = least, most: int = most) -> bool:
            return least <= await percent() <= most

        await until(follows, f"{size} gives {least} to {most} %", seconds=60)


@pytest.mark.parametrize("mode", ["Immediate", "WaitForFirstConsumer"])
async def test_a_bound_claim_is_edited(running: Cluster, client: Client, directory: Path, mode: str) -> None:
    program = Program(directory, "uses")
    klass, claim = a_class("slices", names.VCUDA, mode), a_claim("c", "slices")
    await started(client, program, program.pod({}, using("c")), klass, claim)
    for core, memory_mib in ((70, 8192), (10, 256)):
        await edit(client, "c", core, memory_mib)
        await agrees(running, client, program, memory_mib, claim="c")
    found = await client.get(ElasticGPUClaim, "c", namespace="default")
    assert [(one.type, one.status, one.reason) for one in found.status.conditions] == [("Resized", "True", "InForce")]
    assert found.status.capacity == {names.GPU_CORE: "10", names.GPU_MEMORY: "256"}
    await client.delete(Pod, "uses", namespace="default")


async def test_what_is_used_counts_until_it_is_given_back(running: Cluster, client: Client, directory: Path) -> None:
    program = Program(directory, "fills")
    program.hold(12)
    await started(client, program, program.pod(VCUDA))
    await sees(program, pieces=12)
    await ask(client, "fills", "core=30, memory=256")
    await sees(program, total_mib=256)

    async def told() -> bool:
        (card,) = [gpu for gpu in await client.list(ElasticGPU) if gpu.spec.physical_gpu]
        return [one.over_mib for one in card.status.in_force] == [12 * 64 - 256]

    await until(told, "the node says how much is over", seconds=30)
    container = await given(client, "fills")
    assert container is not None
    assert [share.memory_mib for share in container.held] == [1024]
    program.hold(2)
    await agrees(running, client, program, 256)
    assert (await client.get(Pod, "fills", namespace="default")).status.phase == "Running"


async def test_who_does_not_give_back_in_time_is_ended(client: Client, directory: Path) -> None:
    program = Program(directory, "keeps")
    program.hold(12)
    await started(client, program, program.pod(VCUDA))
    await sees(program, pieces=12)
    await ask(client, "keeps", "memory=256", **{names.SHRINK_WITHIN: "2"})

    async def ended() -> bool:
        return (await client.get(Pod, "keeps", namespace="default")).status.phase == "Failed"

    await until(ended, seconds=60)
    assert "may hold 256 MiB" in (await events(client, "keeps"))["GPUMemoryLimitExceeded"]


async def test_what_has_no_room_is_refused_with_the_numbers_and_given_when_it_has(
    running: Cluster, client: Client, directory: Path
) -> None:
    first, second = Program(directory, "first"), Program(directory, "second")
    await started(client, first, first.pod(VCUDA))
    klass, claim = a_class("slices", names.VCUDA), a_claim("c", "slices")
    await started(client, second, second.pod({}, using("c")), klass, claim)
    await edit(client, "c", 80, 1024)

    async def refused() -> str:
        conditions = (await client.get(ElasticGPUClaim, "c", namespace="default")).status.conditions
        return next((one.message for one in conditions if one.status == "False"), "")

    said = await until(refused, seconds=60)
    assert "card 0 of node node-1 has 70 %" in said
    assert "80 % and 1024 MiB are asked for" in said

    async def told() -> str:
        return (await events(client, "c")).get("DoesNotFit", "")

    assert "80 %" in await until(told, "the event comes after the condition", seconds=60)
    await ask(client, "first", "core=75")

    async def answered() -> str:
        pod = await client.get(Pod, "first", namespace="default")
        return pod.annotations.get(f"{names.RESIZED_PREFIX}app", "")

    assert "has 70 %" in await until(answered, seconds=60)
    await ask(client, "first", "core=20")
    await agrees(running, client, second, 1024, claim="c")

    async def granted() -> bool:
        container = await given(client, "second")
        return container is not None and container.cards[0].core == 80

    await until(granted, seconds=60)


async def test_what_can_have_no_other_size_is_refused(client: Client, directory: Path) -> None:
    program = Program(directory, "whole")
    await started(client, program, program.pod({names.GPU: "1"}))
    await ask(client, "whole", "core=50")

    async def answered() -> str:
        pod = await client.get(Pod, "whole", namespace="default")
        return pod.annotations.get(f"{names.RESIZED_PREFIX}app", "")

    assert "whole cards" in await until(answered, seconds=60)
    with pytest.raises(Refused, match="is not of the form core=PERCENT, memory=AMOUNT"):
        await ask(client, "whole", "half")


@pytest.mark.parametrize("technology", [names.VCUDA, names.QGPU, names.POOL])
async def test_a_claim_may_use_idle_compute_up_to_a_limit_that_can_be_edited(
    running: Cluster, client: Client, directory: Path, technology: str
) -> None:
    klass, claim, program = a_class("bursts", technology), a_claim("c", "bursts"), Program(directory, "bursts")
    requests = claim["spec"]["resources"]["requests"] = {names.GPU_CORE: 30, names.GPU_MEMORY: 1024}
    claim["spec"]["resources"]["limits"] = {names.GPU_CORE: 60}
    await started(client, program, program.pod({}, using("c")), klass, claim)

    async def has(limit: int, qos: str, mode: Mode) -> bool:
        container, pod = await given(client, "bursts"), await client.get(Pod, "bursts", namespace="default")
        line = line_of(running, pod)
        assert container is not None
        return (container.core_limit, container.qos, line and line.mode) == (limit, qos, mode)

    await until(partial(has, 60, "Burstable", Mode.SHARE), seconds=60)
    for limits, *expected in (
        ({names.GPU_CORE: 30}, 0, "Guaranteed", Mode.CAP),
        ({names.GPU_CORE: 100}, 100, "Burstable", Mode.SHARE),
    ):
        spec = {"resources": {"requests": requests, "limits": limits}}
        await client.patch(ElasticGPUClaim, "c", {"spec": spec}, namespace="default")
        await until(partial(has, *expected), seconds=60)
    await agrees(running, client, program, 1024, claim="c")


async def test_a_vgpu_has_the_size_of_its_profile_and_keeps_it(
    running: Cluster, client: Client, directory: Path
) -> None:
    """By a resource name, and by a claim whose class says that idle compute may be used."""
    half, quarter = f"{names.VGPU}-2", f"{names.VGPU}-4"
    claim = a_claim("half", "vgpu")
    claim["spec"]["resources"]["requests"] = {half: 1}
    klass = a_class("vgpu", names.VGPU, parameters={"vgpuScheduler": "equal-share"})
    plain, claimed = Program(directory, "plain"), Program(directory, "claimed")
    await started(client, claimed, claimed.pod({}, using("half")), klass, claim)
    await started(client, plain, plain.pod({quarter: "1"}))
    await agrees(running, client, claimed, CARD_MIB // 2, "half")
    await agrees(running, client, plain, CARD_MIB // 4)
    of_claim, of_pod = await given(client, "claimed"), await given(client, "plain")
    assert of_claim is not None
    assert of_pod is not None
    assert (of_claim.provisioner, of_claim.cards[0].core, of_claim.core_limit) == (names.VGPU, 50, 100)
    assert (of_pod.provisioner, of_pod.cards[0].core, of_pod.core_limit) == (names.VGPU, 25, 0)
    spec = {"resources": {"requests": {half: None, quarter: 1}}}
    with pytest.raises(Refused, match="vgpu provides slices of fixed sizes"):
        await client.patch(ElasticGPUClaim, "half", {"spec": spec}, namespace="default")
    plain.hold(CARD_MIB // 64)
    await sees(plain, pieces=CARD_MIB // 4 // 64)


async def test_a_quota_bounds_growth(running: Cluster, client: Client, directory: Path) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus"},
        "spec": {"hard": {f"requests.{names.GPU_CORE}": "40"}},
    }
    path = "/api/v1/namespaces/default/resourcequotas"
    await client.raw("POST", path, body=quota)
    try:
        program = Program(directory, "counted")
        await started(client, program, program.pod(VCUDA))
        await ask(client, "counted", "core=41")

        async def answered() -> str:
            pod = await client.get(Pod, "counted", namespace="default")
            return pod.annotations.get(f"{names.RESIZED_PREFIX}app", "")

        assert "11 more were requested" in await until(answered, seconds=60)
        await ask(client, "counted", "core=40, memory=2048")
        await agrees(running, client, program, 2048)
    finally:
        await client.raw("DELETE", f"{path}/gpus")


async def test_many_resizes_at_random_while_components_are_killed(
    running: Cluster, client: Client, directory: Path
) -> None:
    """At every moment no card is given out twice, and in the end everything agrees with what was asked last."""
    rng = random.Random(SEED)
    asks, uses = Program(directory, "asks"), Program(directory, "uses")
    await started(client, asks, asks.pod(VCUDA))
    klass, claim = a_class("slices", names.VCUDA), a_claim("c", "slices")
    await started(client, uses, uses.pod({}, using("c")), klass, claim)
    found: set[str] = set()
    watching = asyncio.create_task(watch(running, client, found))
    try:
        for number in range(RESIZES):
            core, memory_mib = rng.randint(1, 60), rng.choice((256, 512, 1024, 30_000, 50_000))
            # While the API server's webhook is away, or somebody was faster, the next one counts.
            with contextlib.suppress(ElasticGPUError):
                if rng.random() < 0.5:
                    await ask(client, "asks", f"core={core}, memory={memory_mib}")
                else:
                    await edit(client, "c", core, memory_mib)
            if number % KILL_EVERY == KILL_EVERY - 1:
                running.fleet.children[rng.choice(("extender", "controller", "agent-node-1"))].kill()
            await asyncio.sleep(rng.uniform(0, 0.2))
        await until(lambda: answered(lambda: edit(client, "c", 40, 2048)), seconds=60)
        await until(lambda: answered(lambda: ask(client, "asks", "core=60, memory=1024")), seconds=60)
        await agrees(running, client, uses, 2048, claim="c")
        await agrees(running, client, asks, 1024)
    finally:
        watching.cancel()
    assert not found
    assert (await client.get(Pod, "asks", namespace="default")).status.phase == "Running"


async def answered(call: Callable[[], Awaitable[None]]) -> bool:
    try:
        await call()
    except ElasticGPUError:
        return False
    return True


async def watch(running: Cluster, client: Client, found: set[str]) -> None:
    """Recomputes the ledger from what the API server says, and adds up the pages, again and again."""
    pods = [await client.get(Pod, name, namespace="default") for name in ("asks", "uses")]
    while True:
        with contextlib.suppress(ElasticGPUError):
            gpus, claims = await client.list(ElasticGPU), await client.list(ElasticGPUClaim)
            books = rebuild(gpus, await client.list(Pod), claims)
            # What was read one after the other is true of one moment where the first is still so.
            again = {one.name: one.metadata.resource_version for one in await client.list(ElasticGPUClaim)}
            if again == {one.name: one.metadata.resource_version for one in claims}:
                found.update(books.problems())
        first, second = (page_of(running, pod) for pod in pods)
        if first is not None and second is not None and page_of(running, pods[0]) == first:
            core, memory_mib = first[0] + second[0], first[1] + second[1]
            if core > 100 or memory_mib > CARD_MIB:
                found.add(f"the pages allow {core} % and {memory_mib} MiB")
        await asyncio.sleep(0.02)
