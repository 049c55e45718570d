"""Pods with ResourceClaims for the storm (`support.storm`), on nodes with each allocator.

Each request of a claim is for one container, which reports as all containers of the storm do. Victims are pods with
claims that run on, have the cards of priced nodes, and are less important than all others: they are evicted.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from egpu.api import names
from egpu.api.allocation import ContainerAllocation
from egpu.api.objects import ElasticGPU
from egpu.core.dra.devices import device_name
from egpu.core.dra.grants import NodeCard, grants, main_request
from egpu.core.dra.held import node_of
from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster
from egpu_base.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.kubernetes import Change, Client, Reflector
from support.claims import a_class
from support.storm import script
from support.waiting import until

ALLOCATORS: Final = (names.PRICED, names.PRICED, names.DRA, names.DEVICE_PLUGIN)
"""By node, in turn."""
READY_SECONDS: Final = 120.0
TEMPLATES: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
SIZES: Final = ((10, 1000), (20, 3001), (40, 7000), (60, 500))
"""Percent and MiB."""
POD_CLAIM: Final = "resource.kubernetes.io/pod-claim-name"
VICTIM: Final = "victim"
"""The PriorityClass of victims, and the prefix of their names."""
PRIORITIES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
VICTIM_SECONDS: Final = 3600.0
"""Longer than any round."""


def _request(name: str, klass: str, **exactly: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": klass, **exactly}}


def _slice(name: str, size: tuple[int, int], **exactly: Any) -> dict[str, Any]:
    cores, mib = size
    return _request(name, "slice", capacity={"requests": {"cores": str(cores), "memory": f"{mib}Mi"}}, **exactly)


REQUESTS: Final[Mapping[str, Sequence[dict[str, Any]]]] = {
    **{f"size{number}": [_slice("gpu", size)] for number, size in enumerate(SIZES)},
    "two": [_slice("gpu", SIZES[1], count=2)],
    "both": [_slice("one", SIZES[0]), _slice("other", SIZES[2])],
    "whole": [_request("gpu", "whole")],
}
"""The requests of a claim, by the name of its template."""


async def prepare(running: Cluster, client: Client) -> None:
    """Give each node its allocator, and create classes and templates."""
    classes = {"slice": names.VCUDA, "whole": names.PHYSICAL}
    await manifests.create(client, [a_class(*one, "WaitForFirstConsumer") for one in classes.items()])
    least = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": VICTIM}, "value": -10}
    await client.raw("POST", PRIORITIES, body=least)
    wanted = dict(zip(sorted(running.node_names), ALLOCATORS, strict=True))
    for node, allocator in wanted.items():
        await client.patch(Node, node, {"metadata": {"labels": {names.ALLOCATOR: allocator}}})
        running.fleet.children[f"agent-{node}"].kill()  # a starting agent reads it at once
    for name, requests in REQUESTS.items():
        body = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": list(requests)}}}}
        await client.raw("POST", TEMPLATES, body=body)
    for name in classes:
        await until(lambda name=name: client.find(DeviceClass, name))
    by_claims = {node for node, allocator in wanted.items() if allocator != names.DEVICE_PLUGIN}

    async def ready() -> bool:
        told = {name for gpu in await client.list(ElasticGPU) if (name := _serving(gpu, wanted))}
        return told == by_claims == {one.spec.node_name for one in await client.list(ResourceSlice)}

    await until(ready, f"nodes serve {wanted}", seconds=READY_SECONDS)


def _serving(gpu: ElasticGPU, wanted: Mapping[str, str]) -> str:
    """Return the card's node if the card says who gives it to claims, as wanted."""
    card = gpu.spec.physical_gpu
    return gpu.spec.node_name if card is not None and card.allocator == wanted[gpu.spec.node_name] else ""


def pods(seed: int, count: int) -> list[dict[str, Any]]:
    """`count` pods with one or two claims. Half of them select who gives out the cards."""
    rng = random.Random(seed)
    return [_pod(rng, number) for number in range(count)]


def victims(count: int) -> list[dict[str, Any]]:
    """`count` pods that hold cards of priced nodes until they are evicted: three in four hold a whole card each."""
    return [_victim(number) for number in range(count)]


def is_victim(pod: Pod) -> bool:
    return pod.name.startswith(VICTIM)


def _victim(number: int) -> dict[str, Any]:
    spec = _spec(["whole" if number % 4 else "both"], lambda: VICTIM_SECONDS)
    spec |= {"priorityClassName": VICTIM, "nodeSelector": {names.ALLOCATOR: names.PRICED}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{VICTIM}-{number}"}, "spec": spec}


def _pod(rng: random.Random, number: int) -> dict[str, Any]:
    templates = rng.choices(list(REQUESTS), weights=(5, 5, 5, 5, 2, 4, 2), k=rng.choice((1, 1, 1, 2)))
    spec = _spec(templates, lambda: rng.uniform(0.2, 1.0))
    if rng.random() < 0.5:
        spec["nodeSelector"] = {names.ALLOCATOR: rng.choice((names.PRICED, names.DRA))}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"claims-{number}"}, "spec": spec}


def _spec(templates: Sequence[str], seconds: Callable[[], float]) -> dict[str, Any]:
    """A pod with a claim of each template, and a container for each request that holds it for some seconds."""
    containers = [
        _container(seconds(), f"gpu{at}", request["name"])
        for at, name in enumerate(templates)
        for request in REQUESTS[name]
    ]
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": containers,
        "resourceClaims": [
            {"name": f"gpu{at}", "resourceClaimTemplateName": name} for at, name in enumerate(templates)
        ],
    }


def _container(seconds: float, claim: str, request: str) -> dict[str, Any]:
    return {
        "name": f"{claim}-{request}",
        "image": "any",
        "command": ["sh", "-c", script(seconds)],
        "resources": {"claims": [{"name": claim, "request": request}]},
    }


class ClaimRecords:
    """The last allocation of each claim that was made for a pod, also of those that are gone by now."""

    def __init__(self, client: Client) -> None:
        self._follows = Reflector(client, ResourceClaim)
        self._claims: dict[str, dict[str, ResourceClaim]] = {}
        """Allocated claims by the pod's UID, and its name for the claim."""
        self._follows.on_change(self._changed)

    async def watch(self) -> None:
        """Follow claims until cancelled."""
        await self._follows.run()

    def _changed(self, change: Change[ResourceClaim]) -> None:
        claim = change.new
        if claim is None or claim.status.allocation is None:
            return
        for owner in claim.metadata.owner_references or ():
            self._claims.setdefault(owner.uid, {})[claim.annotations.get(POD_CLAIM, "")] = claim

    def given(self, pod: Pod, gpus: Sequence[ElasticGPU]) -> dict[str, ContainerAllocation]:
        """Return the slices of the pod's containers that have a claim."""
        found: dict[tuple[str, str], ContainerAllocation] = {}
        for name, claim in self._claims.get(pod.uid, {}).items():
            assert node_of(claim) == pod.spec.node_name, f"{pod.name}: claim {claim.name} is on {node_of(claim)}"
            for one in grants(claim, pod.spec.node_name, _cards(gpus, pod.spec.node_name)):
                found[name, main_request(one.request)] = one.allocation
        return {
            container.name: found[one.name, one.request]
            for container in pod.all_containers
            if container.resources is not None
            for one in container.resources.claims or ()
        }


def _cards(gpus: Sequence[ElasticGPU], node: str) -> dict[str, NodeCard]:
    cards = [gpu.spec.physical_gpu for gpu in gpus if gpu.spec.node_name == node]
    return {
        device_name(card.uuid): NodeCard(card.uuid, card.index, card.minor, card.memory_mib, card.model)
        for card in cards
        if card is not None
    }


async def claims_given_back(running: Cluster, client: Client) -> None:
    """Wait until no claim of a pod is left, and no device file of one."""

    async def left() -> list[str]:
        claims = [one.key for one in await client.list(ResourceClaim)]
        return [*claims, *(str(path) for path in _files(running))]

    found: list[str] = []

    async def nothing() -> bool:
        found[:] = await left()
        return not found

    await until(nothing, lambda: f"claims are given back: {found[:10]}")


def _files(running: Cluster) -> Iterator[Path]:
    for node in running.node_names:
        with contextlib.suppress(FileNotFoundError):
            yield from (running.node_dir(node) / "cdi").glob(f"{names.GROUP}-claim_*")
