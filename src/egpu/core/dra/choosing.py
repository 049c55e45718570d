"""Chooses node and cards for the ResourceClaims of a pod, as the extender chooses for pods: the same ledger, fit and
policies. All claims of a pod get their cards on one node, or none does.

kube-scheduler has the last word about the node. So a node is chosen only if the pod would fit there by the rules that
pods and nodes show. Where other rules refuse it, kube-scheduler takes the allocation back.
"""

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_fields
from fractions import Fraction
from functools import cache
from typing import Final

import numpy as np
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, ContainerDemand, PodAllocation, PodDemand
from egpu.api.objects import ClaimAllocation as HeldAllocation
from egpu.core.dra.asking import Asked
from egpu.core.dra.devices import CORES, MEMORY, device_name
from egpu.core.placement.hosts import pod_requests
from egpu.core.placement.node_filters import rejection
from egpu.core.placement.node_names import NodeNames
from egpu.core.placement.requests import Request, class_policy
from egpu.core.preemption.neighbours import forbids
from egpu.core.preemption.scene import Scene
from egpu.core.preemption.sums import Sums
from egpu_base.api.devices import AllocatedDevice, ClaimAllocation, ConsumerReference, DeviceAllocation, ResourceClaim
from egpu_base.api.kubernetes import Pod
from egpu_base.api.quantities import canonical_quantity
from egpu_base.api.resources import CPU, PODS, Amounts, effective_requests
from egpu_base.errors import DoesNotFit

_HOST_MEMORY: Final = "memory"
_COUNTED: Final = frozenset({CPU, _HOST_MEMORY, PODS})
"""What is counted for each node all the time."""
MAX_REASONS: Final = 3
"""Nodes whose reasons one message has."""


@dataclass(frozen=True)
class Wish:
    """A pod with its ResourceClaims of ours: those that wait, and what the others (by name) hold. `node` is the only
    one possible because of allocated claims, of other drivers too; "" if there are none."""

    pod: Pod
    waiting: Sequence[Asked]
    held: Mapping[str, PodAllocation]
    node: str = ""


@dataclass(frozen=True)
class Choice:
    """The claims with their allocations, and what they hold on `node`."""

    node: str
    claims: tuple[ResourceClaim, ...]


def request_of(wish: Wish, scene: Scene) -> Request:
    """Return the wish as a request of a pod whose containers are the claims' requests."""
    containers: dict[str, ContainerDemand] = {}
    bound: dict[str, HeldAllocation] = {}
    for name, allocation in wish.held.items():
        for request, container in allocation.containers.items():
            key = f"{name}/{request}"
            containers[key] = ContainerDemand(provisioner=container.provisioner)
            bound[key] = HeldAllocation(node=allocation.node, container=container)
    for one in wish.waiting:
        containers |= {f"{one.claim.name}/{request}": demand for request, demand in one.demands.items()}
    room = pod_requests(wish.pod)
    return Request(
        PodDemand(containers=containers),
        bound,
        cpu_milli=room.cpu_milli,
        ram_mib=room.ram_mib,
        models=scene.cache.selection.models(wish.pod),
        policy=class_policy(containers.values(), scene.cache.classes),
    )


def choose(wish: Wish, scene: Scene, *, avoided: Collection[str] = (), timestamp: str = "") -> Choice:
    """Return the best node by the policies, and the allocations there. Changes nothing.

    Raises DoesNotFit, with why.
    """
    request, possible = request_of(wish, scene), _possible(wish, scene, avoided)
    objections: list[str] = []
    takes = cache(takers(wish.pod, request, scene, objections))
    placed = _likeliest(request, possible, scene, takes)
    if placed is None:
        placed = _best(request, _with_room(request, possible, scene), scene, takes)
    if placed is None:
        raise DoesNotFit(_some(objections[:MAX_REASONS], of=len(objections)))
    return Choice(placed.node, tuple(_allocated(one, placed, wish.pod, timestamp) for one in wish.waiting))


def _likeliest(
    request: Request, possible: Sequence[str], scene: Scene, takes: Callable[[str], bool]
) -> PodAllocation | None:
    """Return the cards on the best of all possible nodes, if the pod fits there; None if the nodes that fit have to be
    found first, which takes several times as long."""
    ranking = scene.cache.ranking
    node = ranking.likeliest(request, possible, scene.policies)
    if node is None:
        return None
    try:
        placed = ranking.choose(request, node, scene.policies)
    except DoesNotFit:
        return None
    return placed if takes(node) else None


def _best(request: Request, fits: Sequence[str], scene: Scene, takes: Callable[[str], bool]) -> PodAllocation | None:
    """Return the cards on the best of the fitting nodes that takes the pod; None if none does."""
    node = next(filter(takes, _best_first(request, fits, scene)), None)
    return None if node is None else scene.cache.ranking.choose(request, node, scene.policies)


def with_room(wish: Wish, request: Request, scene: Scene, *, avoided: Collection[str] = ()) -> Sequence[str]:
    """Return the nodes whose cards can take the request, at least one. Raises DoesNotFit, with why."""
    return _with_room(request, _possible(wish, scene, avoided), scene)


def _with_room(request: Request, possible: Sequence[str], scene: Scene) -> Sequence[str]:
    if not possible:
        raise DoesNotFit(f"no node with {names.ALLOCATOR}={names.PRICED} is one that the pod selects and may have")
    filtered = scene.cache.filter(request, possible)
    if not filtered.ok.any():
        said = [f"{node}: {filtered.refusal(node).text()}" for node in filtered.refused[:MAX_REASONS]]
        raise DoesNotFit(_some(said, of=len(filtered.refused)))
    return possible.subset(filtered.ok) if isinstance(possible, NodeNames) else filtered.fits


def _possible(wish: Wish, scene: Scene, avoided: Collection[str]) -> Sequence[str]:
    """Return the nodes that may serve the wish by what the pod selects, and by claims that it has already."""
    priced: Sequence[str] = (wish.node,) if wish.node else scene.cache.device_claims.priced_nodes()
    if avoided and not wish.node:
        priced = [one for one in priced if one not in avoided]
    return scene.cache.selection.of(wish.pod, priced)


def _some(reasons: Sequence[str], *, of: int) -> str:
    more = f"; and {of - len(reasons)} nodes more" if of > len(reasons) else ""
    return "; ".join(reasons) + more


def _best_first(request: Request, fits: Sequence[str], scene: Scene) -> Iterator[str]:
    """Yield the fitting nodes by the policy's score; among equals the first of the ledger."""
    rows, places = scene.cache.ledger.rows_of(fits)
    rated = scene.cache.ranking.rated(request, fits, scene.policies, all_fit=True)[places]
    best = np.flatnonzero(rated == rated.max())
    first = int(best[rows[best].argmin()])
    yield fits[int(places[first])]
    # Seldom needed: the first one almost always takes the pod.
    order: list[int] = places[np.lexsort((rows, -rated))].tolist()
    yield from (fits[at] for at in order if at != int(places[first]))


def takers(pod: Pod, request: Request, scene: Scene, objections: list[str]) -> Callable[[str], bool]:
    """Return a test of a node's other resources, taints and neighbours. It adds why a node does not take the pod.

    Pods that have cards and no node yet count with their CPU and memory, which kube-scheduler does not know."""
    sums, asked, hosts = Sums(scene.nodes, scene.pods), effective_requests(pod), scene.cache.hosts
    alone = not forbids(pod) and not scene.pods.any_anti_affinity

    def used(name: str) -> Amounts:
        if not asked.keys() <= _COUNTED:
            return sums.used(name)
        total, free = hosts.total(name), hosts.free(name)  # as `sums.used`, without reading the node's pods
        cpus = Fraction(total.cpu_milli - free.cpu_milli, 1000)
        return {
            CPU: cpus,
            _HOST_MEMORY: Fraction((total.ram_mib - free.ram_mib) << 20),
            PODS: Fraction(scene.pods.count(name)),
        }

    def takes(name: str) -> bool:
        node = scene.nodes.get(name)
        if node is None:
            objections.append(f"{name}: its Node is gone")
            return False
        refused = rejection(pod, node, requests=asked, used=used(name))
        if refused is not None:  # pods that are about to start are no part of this message
            refused = rejection(pod, node, requests=asked, used=sums.used(name))
        why = "; ".join(refused.reasons) if refused is not None else ""
        if not why and not alone:
            why = sums.objection(pod, name, gone=())
        free = hosts.free(name)
        if not why and (free.cpu_milli < request.cpu_milli or free.ram_mib < request.ram_mib):
            why = "its CPU or memory is promised to pods that are about to start"
        if why:
            objections.append(f"{name}: {why}")
        return not why

    return takes


def _allocated(asked: Asked, placed: PodAllocation, pod: Pod, timestamp: str) -> ResourceClaim:
    """Return the claim with its allocation, reserved for the pod."""
    claim = asked.claim
    results = [
        one
        for request, demand in asked.demands.items()
        for one in _results(request, demand, placed.containers[f"{claim.name}/{request}"], placed.node)
    ]
    only = {"key": "metadata.name", "operator": "In", "values": [placed.node]}
    allocation = ClaimAllocation(
        devices=DeviceAllocation(results=results, config=list(asked.config) or None),
        node_selector={"nodeSelectorTerms": [{"matchFields": [only]}]},
        # Without it, kube-scheduler adds its own, and the API server refuses that as a change of the allocation.
        allocation_timestamp=timestamp or None,
    )
    user = ConsumerReference(resource="pods", name=pod.name, uid=pod.uid)
    return replace(claim, status=replace(claim.status, allocation=allocation, reserved_for=[user]))


def _results(request: str, demand: ContainerDemand, given: ContainerAllocation, node: str) -> list[AllocatedDevice]:
    return [
        AllocatedDevice(
            request=request,
            driver=names.DRIVER,
            pool=node,
            device=device_name(share.uuid),
            share_id=str(uuid.uuid4()),
            consumed_capacity={
                CORES: "100" if demand.exclusive else str(share.core),
                MEMORY: canonical_quantity(f"{share.card_memory_mib if demand.exclusive else share.memory_mib}Mi"),
            },
        )
        for share in given.cards
    ]


def without_held(wish: Wish, released: Sequence[Asked]) -> Wish:
    """Return the wish as if claims (of `released`) had no cards yet."""
    gone = {one.claim.name for one in released}
    held = {name: one for name, one in wish.held.items() if name not in gone}
    return with_fields(wish, waiting=(*wish.waiting, *released), held=held, node="")
