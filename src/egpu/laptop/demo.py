"""The scenes of `egpu demo`: each applies an example manifest unchanged and checks the result.

A scene fails when its expected result is missing. The output shows only real events.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.laptop import manifests
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import ElasticGPUError, NotFound, Refused, Unavailable
from egpu_base.kubernetes import Client

SCENE_SECONDS = 60.0
POLL_SECONDS = 0.1
TOLERANCE_POINTS = 8.0
"""Allowed distance between a pod's own measurement and its cap: other programs share the demo's machine."""


@dataclass(frozen=True)
class Outcome:
    """A scene's result: `proof` are lines of output, `ok` whether they are as expected."""

    ok: bool
    proof: tuple[str, ...]


@dataclass(frozen=True)
class Scene:
    """One manifest and its expected result."""

    title: str
    manifest: str
    pods: tuple[str, ...]
    check: Callable[["Stage"], Awaitable[Outcome]]


class Stage:
    """A client, the folder of the manifests, and the pods of the present scene."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.folder = folder
        self.pods: tuple[str, ...] = ()

    async def play(self, scene: Scene) -> Outcome:
        self.pods = scene.pods
        try:
            await manifests.create(self.client, manifests.read(self.folder / scene.manifest))
            return await scene.check(self)
        except ElasticGPUError as error:
            return Outcome(False, (str(error),))

    async def pod(self, name: str) -> Pod:
        return await self.client.get(Pod, name, namespace="default")

    async def until(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a condition. Raises Unavailable naming `what`."""
        deadline = time.monotonic() + SCENE_SECONDS
        while not await condition():
            if time.monotonic() > deadline:
                raise Unavailable(f"{what} did not happen within {SCENE_SECONDS:g} s")
            await asyncio.sleep(POLL_SECONDS)

    async def log(self, name: str, container: str) -> list[str]:
        """Return lines of a container's log: of this run, or of the run before while this one has written nothing."""
        path = f"/api/v1/namespaces/default/pods/{name}/log"
        for previous in ("false", "true"):
            try:
                text = await self.client.text(path, params={"container": container, "previous": previous})
            except (Refused, NotFound):
                continue
            if text.strip():
                return text.strip().splitlines()
        return []


async def runs_to_the_right_answer(stage: Stage) -> Outcome:
    """Check that each pod's first container computes the right answer on its GPU."""
    proof: list[str] = []
    right = True
    for name in stage.pods:
        container = (await stage.pod(name)).containers[0].name

        async def said(name: str = name, container: str = container) -> bool:
            return bool(await stage.log(name, container))

        await stage.until(f"output of pod {name}", said)
        lines = await stage.log(name, container)
        right = right and any(line.endswith(": ok") for line in lines)
        proof += [f"{name}: {line}" for line in lines[-2:]]
    return Outcome(right, tuple(proof))


async def runs_without_a_gpu(stage: Stage) -> Outcome:
    """Check the answer of a container whose runtime was told to give it neither devices nor driver."""
    outcome = await runs_to_the_right_answer(stage)
    (name,) = stage.pods
    pod = await stage.pod(name)
    given = pod.annotations.get(names.cards_annotation(pod.containers[0].name), "")
    return Outcome(outcome.ok and given == names.NO_DEVICES, outcome.proof)


async def runs_on_another_nodes_card(stage: Stage) -> Outcome:
    """Check the answer on a node without cards: the allocation names the node that serves one."""
    outcome = await runs_to_the_right_answer(stage)
    far: list[bool] = []
    for name in stage.pods:
        pod = await stage.pod(name)
        given = decode_allocation(pod.annotations[names.ALLOCATION])
        far += [container.server not in ("", given.node) for container in given.containers.values()]
    return Outcome(outcome.ok and all(far), outcome.proof)


async def waits_card_by_card(stage: Stage) -> Outcome:
    """Check that the pod stays Pending, and that its condition says what each card lacks."""
    return await _waits(stage, "card 0")


async def _waits(stage: Stage, expected: str) -> Outcome:
    (name,) = stage.pods
    messages: list[str] = []

    async def told() -> bool:
        pod = await stage.pod(name)
        messages[:] = [
            one.message
            for one in pod.status.conditions or []
            if one.type == "PodScheduled" and one.status == "False" and one.message
        ]
        return bool(messages)

    await stage.until(f"a reason why pod {name} waits", told)
    pod = await stage.pod(name)
    return Outcome(not pod.spec.node_name and expected in messages[0], (f"{name} is Pending: {messages[0]}",))


async def all_run(stage: Stage) -> Outcome:
    async def running() -> bool:
        return all([(await stage.pod(name)).status.phase == "Running" for name in stage.pods])

    await stage.until(f"pods {', '.join(stage.pods)} running", running)
    places = [(await stage.pod(name)).spec.node_name for name in stage.pods]
    return Outcome(True, tuple(f"{name} runs on {node}" for name, node in zip(stage.pods, places, strict=True)))


async def is_stopped_at_its_limit(stage: Stage) -> Outcome:
    """Check that the pod gets exactly its slice, and then CUDA_ERROR_OUT_OF_MEMORY."""
    (name,) = stage.pods
    lines = await _finished_log(stage, name)
    text = " ".join(lines)
    limit_bytes = 2048 * 1024 * 1024
    ok = "CUDA_ERROR_OUT_OF_MEMORY" in text and re.search(rf"\b{limit_bytes}\b", text) is not None
    return Outcome(ok, tuple(lines))


async def is_held_to_its_share(stage: Stage) -> Outcome:
    """Check that the pod measures about its 30 %."""
    (name,) = stage.pods
    lines = await _finished_log(stage, name)
    measured = [float(figure) for line in lines for figure in re.findall(r"(\d+(?:\.\d+)?) ?%", line)]
    ok = bool(measured) and abs(measured[0] - 30) <= TOLERANCE_POINTS
    return Outcome(ok, tuple(lines))


async def _finished_log(stage: Stage, name: str) -> Sequence[str]:
    async def finished() -> bool:
        return (await stage.pod(name)).status.phase in ("Succeeded", "Failed")

    await stage.until(f"the end of pod {name}", finished)
    return await stage.log(name, (await stage.pod(name)).containers[0].name)


async def refusal(stage: Stage, manifest: str) -> Outcome:
    """Check that creating the manifest fails, and that the error names the field."""
    try:
        await manifests.create(stage.client, manifests.read(stage.folder / manifest))
    except Refused as error:
        return Outcome(names.GPU_CORE in str(error), (str(error),))
    return Outcome(False, (f"{manifest} was accepted",))


SCENES = (
    Scene(
        "A whole card, requested as from the NVIDIA device plugin",
        "seed-whole-card.yaml",
        ("cuda-vector-add",),
        runs_to_the_right_answer,
    ),
    Scene(
        "A slice of 20 % and 10 × 256 MiB, requested as docker.com/vcuda-core and docker.com/vcuda-memory",
        "seed-vcuda.yaml",
        ("vcuda-pod",),
        runs_to_the_right_answer,
    ),
    Scene(
        "A class, a claim and its pod: gpushare, memory only",
        "seed-gpushare.yaml",
        ("test-cuda-1",),
        runs_to_the_right_answer,
    ),
    Scene(
        "A qGPU slice: 10 % and 4 GB, in a container that has no GPU itself",
        "seed-qgpu.yaml",
        ("qgpu-pod",),
        runs_without_a_gpu,
    ),
    Scene(
        "A pod on a node without GPUs: a slice of another node's card",
        "pool.yaml",
        ("pool-slice",),
        runs_on_another_nodes_card,
    ),
    Scene(
        "A claim whose card is chosen when its pod is placed",
        "claim.yaml",
        ("notebook",),
        runs_to_the_right_answer,
    ),
    Scene(
        "More memory than the slice: refused exactly at the limit",
        "memory-limit.yaml",
        ("memory-limit",),
        is_stopped_at_its_limit,
    ),
    Scene(
        "More compute than the slice: limited to 30 %",
        "compute-cap.yaml",
        ("compute-cap",),
        is_held_to_its_share,
    ),
    Scene(
        "Four tenants of 55 %: each on a card of its own",
        "tenants.yaml",
        ("tenant-1", "tenant-2", "tenant-3", "tenant-4"),
        all_run,
    ),
    Scene(
        "A pod of 60 %: free in all, free on no card",
        "does-not-fit.yaml",
        ("does-not-fit",),
        waits_card_by_card,
    ),
)
