"""A storm of pods, sixty at once: what they ask for, what every container must see, and what must never be seen.

Each container reports, from inside, its policy page and the devices that CUDA and NVML show it. The watcher recomputes
the ledger from what the API server says, again and again, and from what is really running.
"""

import asyncio
import base64
import contextlib
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from egpu.adapters import native
from egpu.adapters.slices import pages
from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation, decode_allocation
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu_base.api.devices import ResourceClaim
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import ElasticGPUError
from egpu_base.kubernetes import Client

MIB = 1024 * 1024
MARK = "POLICY "
CARDS_PER_NODE = 4
"""Of the storm's clusters. A pod that needs more would wait for ever."""
TWO_CARDS = {names.GPU_CORE: "200"}


def manifests(seed: int, count: int = 60) -> list[dict[str, Any]]:
    """`count` pods of 1 to 3 GPU containers, in every vocabulary that shares or takes whole cards."""
    rng = random.Random(seed)
    return [_pod(rng, number) for number in range(count)]


def _pod(rng: random.Random, number: int) -> dict[str, Any]:
    count = rng.choice((1, 1, 2, 2, 3))
    containers = [_container(rng, f"c{index}") for index in range(count)]
    while most_cards(containers) > CARDS_PER_NODE:
        containers = [_container(rng, f"c{index}") for index in range(count)]
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": containers, "terminationGracePeriodSeconds": 1}
    if rng.random() < 0.15:
        spec["initContainers"] = [_container(rng, "init")]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"storm-{number}"}, "spec": spec}


def most_cards(containers: Sequence[dict[str, Any]]) -> int:
    """Return the number of cards that the containers take together if no two of them share one."""
    return sum(2 if one["resources"]["limits"] == TWO_CARDS else 1 for one in containers)


def _container(rng: random.Random, name: str) -> dict[str, Any]:
    kind = rng.choices(("ours", "docker", "tencent", "gpushare", "whole", "two"), weights=(35, 20, 15, 15, 10, 5))[0]
    core = rng.choice((5, 10, 20, 25, 30, 40, 60))
    blocks = rng.choice((2, 4, 10, 30, 60))
    limits: dict[str, str] = {
        "ours": {names.GPU_CORE: str(core), names.GPU_MEMORY: str(blocks * 250 + 1)},
        "docker": {names.DOCKER_VCUDA_CORE: str(core), names.DOCKER_VCUDA_MEMORY: str(blocks)},
        "tencent": {names.TENCENT_VCUDA_CORE: str(core), names.TENCENT_VCUDA_MEMORY: str(blocks)},
        "gpushare": {names.ALIYUN_GPU_MEM: str(blocks)},
        "whole": {names.NVIDIA_GPU: "1"},
        "two": TWO_CARDS,
    }[kind]
    return {
        "name": name,
        "image": "any",
        "command": ["sh", "-c", script(rng.uniform(0.2, 1.0))],
        "resources": {"limits": limits},
    }


def script(seconds: float) -> str:
    """Report from inside, through a shell whose environment was cleared, then hold the slice for a while."""
    info = native.path("samples/egpu-sample-info")
    return (
        "if [ -e /opt/egpu/policy ]; then printf '%s' 'POLICY '; base64 -w0 /opt/egpu/policy; echo; fi; "
        f"env -i {info} --json; sleep {seconds:.2f}"
    )


@dataclass
class Witness:
    """What was seen: problems (must stay empty) and every allocation by pod."""

    problems: set[str] = field(default_factory=set[str])
    allocations: dict[str, PodAllocation] = field(default_factory=dict[str, PodAllocation])

    async def watch(self, client: Client) -> None:
        """Look at the whole cluster ten times a second until cancelled."""
        while True:
            with contextlib.suppress(ElasticGPUError):
                self.look(*await _objects(client))
            await asyncio.sleep(0.1)

    def look(
        self,
        gpus: list[ElasticGPU],
        pods: list[Pod],
        claims: list[ElasticGPUClaim],
        classes: list[ElasticGPUClass],
        device_claims: Sequence[ResourceClaim] = (),
    ) -> None:
        cache = rebuild(gpus, pods, claims, classes)
        for claim in device_claims:
            cache.device_claims.claim_changed(claim)
        if problems := cache.problems():
            self.problems.add("; ".join(problems) + " by " + _who(cache, pods, device_claims))
        for pod in pods:
            text = pod.annotations.get(names.ALLOCATION)
            if text is None:
                continue
            allocation = decode_allocation(text)
            before = self.allocations.setdefault(pod.name, allocation)
            if before != allocation:
                self.problems.add(f"the allocation of {pod.name} changed")


def _who(cache: SchedulerCache, pods: list[Pod], device_claims: Sequence[ResourceClaim]) -> str:
    """Who holds the over-committed cards, and in what state they are: what a failure has to say."""
    holders = {claim.uid: f"claim {claim.name} (rv {claim.metadata.resource_version})" for claim in device_claims} | {
        pod.uid: f"{pod.name} ({pod.status.phase}, {meta.creation_timestamp}, rv {meta.resource_version})"
        for pod in pods
        if (meta := pod.metadata)
    }
    return "; ".join(
        holders[holder.id]
        for over in cache.ledger.overcommits()
        for holder in cache.ledger.card_holders(over.node, over.uuid)
        if holder.id in holders
    )


async def _objects(
    client: Client,
) -> tuple[list[ElasticGPU], list[Pod], list[ElasticGPUClaim], list[ElasticGPUClass], list[ResourceClaim]]:
    # Pods last: a pod that is bound between two lists then meets cards that are known.
    gpus, classes = await client.list(ElasticGPU), await client.list(ElasticGPUClass)
    claims, before = await client.list(ElasticGPUClaim), await client.list(ResourceClaim)
    pods = await client.list(Pod)
    # Only claims with the same allocation before and after surely had it when the pods were listed.
    after = {claim.uid: claim.status.allocation for claim in await client.list(ResourceClaim)}
    held = [claim for claim in before if claim.status.allocation and claim.status.allocation == after.get(claim.uid)]
    return list(gpus), list(pods), list(claims), list(classes), held


def check_container(allocation: ContainerAllocation, log: str) -> Iterator[str]:
    """Differences between what a container was given and what it reported from inside."""
    info = next((json.loads(line) for line in log.splitlines() if line.startswith("{")), None)
    if info is None:
        yield f"no report: {log[:300]!r}"
        return
    devices = {device["uuid"]: device for device in info["devices"]}
    shares = {share.uuid: share for share in allocation.cards}
    if set(devices) != set(shares):
        yield f"sees {sorted(devices)}, was given {sorted(shares)}"
        return
    page = next((line.removeprefix(MARK) for line in log.splitlines() if line.startswith(MARK)), None)
    limited = allocation.provisioner == names.VCUDA and not allocation.exclusive
    if (page is not None) != limited:
        yield f"policy page present: {page is not None}, expected {limited}"
    if page is None:
        return
    policy = {device.uuid: device for device in _policy(page).devices}
    if set(policy) != set(shares):
        yield f"policy of {sorted(policy)}, was given {sorted(shares)}"
        return
    for uuid, share in shares.items():
        limit_bytes = share.memory_mib * MIB
        if policy[uuid].memory_limit_bytes != limit_bytes or policy[uuid].core_ppm != share.core * 10_000:
            yield f"policy {policy[uuid]} is not {share}"
        figures = {devices[uuid][key] for key in ("total", "memory_info_total", "nvml_total")}
        if figures != {limit_bytes}:
            yield f"CUDA and NVML show {figures}, the slice is {limit_bytes}"


def _policy(encoded: str) -> pages.Policy:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "policy")
        path.write_bytes(base64.b64decode(encoded))
        return pages.read_policy(path)
