"""What `egpu demo` does with a cluster: applies the example manifests unchanged, and checks what becomes of them.

Every scene names what must be seen and fails when it is not; nothing is shown that did not just happen.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from egpu.adapters.kubernetes import Client
from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.api.kubernetes import Pod
from egpu.embedded import manifests
from egpu.errors import ElasticGPUError, NotFound, Refused, Unavailable

SCENE_SECONDS = 60.0
POLL_SECONDS = 0.1
TOLERANCE_POINTS = 8.0
"""How far from its cap a pod may measure itself in the demo: its machine is shared with everything else that runs."""


@dataclass(frozen=True)
class Outcome:
    """What a scene showed: `proof` are lines of output, `ok` whether they are what was promised."""

    ok: bool
    proof: tuple[str, ...]


@dataclass(frozen=True)
class Scene:
    """One manifest and what it must lead to."""

    title: str
    manifest: str
    pods: tuple[str, ...]
    check: Callable[["Stage"], Awaitable[Outcome]]


class Stage:
    """Where scenes play: a client, the folder of the manifests, and the pods of the present scene."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.folder = folder
        self.pods: tuple[str, ...] = ()

    async def play(self, scene: Scene) -> Outcome:
        """Apply the scene's manifest and see what becomes of it."""
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
        """Lines of a container's log: of this run, or of the one before where this one has said nothing yet."""
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
    """Each pod's first container computes something on its GPU and checks it."""
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
    """The right answer in a container whose runtime was told to give it neither devices nor driver."""
    outcome = await runs_to_the_right_answer(stage)
    (name,) = stage.pods
    pod = await stage.pod(name)
    given = pod.annotations.get(names.cards_annotation(pod.containers[0].name), "")
    return Outcome(outcome.ok and given == names.NO_DEVICES, outcome.proof)


async def runs_on_another_nodes_card(stage: Stage) -> Outcome:
    """The right answer on a node that has no card: the allocation names the node that serves one."""
    outcome = await runs_to_the_right_answer(stage)
    far: list[bool] = []
    for name in stage.pods:
        pod = await stage.pod(name)
        given = decode_allocation(pod.annotations[names.ALLOCATION])
        far += [container.server not in ("", given.node) for container in given.containers.values()]
    return Outcome(outcome.ok and all(far), outcome.proof)


async def waits_card_by_card(stage: Stage) -> Outcome:
    """The pod stays Pending, and its condition says what each card lacks."""
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
    """Every pod gets a place and runs."""

    async def running() -> bool:
        return all([(await stage.pod(name)).status.phase == "Running" for name in stage.pods])

    await stage.until(f"pods {', '.join(stage.pods)} running", running)
    places = [(await stage.pod(name)).spec.node_name for name in stage.pods]
    return Outcome(True, tuple(f"{name} runs on {node}" for name, node in zip(stage.pods, places, strict=True)))


async def is_stopped_at_its_limit(stage: Stage) -> Outcome:
    """The pod is refused memory with exactly CUDA_ERROR_OUT_OF_MEMORY, having been given exactly its slice."""
    (name,) = stage.pods
    lines = await _finished_log(stage, name)
    text = " ".join(lines)
    limit_bytes = 2048 * 1024 * 1024
    ok = "CUDA_ERROR_OUT_OF_MEMORY" in text and re.search(rf"\b{limit_bytes}\b", text) is not None
    return Outcome(ok, tuple(lines))


async def is_held_to_its_share(stage: Stage) -> Outcome:
    """The pod measures about the 30 % that it was given."""
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
    """The manifest is refused when it is created, and the refusal names the field."""
    try:
        await manifests.create(stage.client, manifests.read(stage.folder / manifest))
    except Refused as error:
        return Outcome(names.GPU_CORE in str(error), (str(error),))
    return Outcome(False, (f"{manifest} was accepted",))


SCENES = (
    Scene(
        "A whole card, as the NVIDIA device plugin's users ask for it",
        "seed-whole-card.yaml",
        ("cuda-vector-add",),
        runs_to_the_right_answer,
    ),
    Scene(
        "A slice in the words of the vGPU article: 20 % and 10 × 256 MiB",
        "seed-vcuda.yaml",
        ("vcuda-pod",),
        runs_to_the_right_answer,
    ),
    Scene(
        "A class, a claim and a pod of it: gpushare, memory only",
        "seed-gpushare.yaml",
        ("test-cuda-1",),
        runs_to_the_right_answer,
    ),
    Scene(
        "The design article's qGPU: 10 % and 4 GB in a container that holds no GPU at all",
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
        "A claim whose card is chosen together with its pod",
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
        "More compute than the slice: held to 30 %",
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
