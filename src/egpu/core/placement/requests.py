"""From a pod or a claim to a `Request`: what has to be placed, what its claims have already, and what it waits for."""

from collections.abc import Mapping
from typing import Final, Protocol

from msgspec.structs import replace

from egpu.api.allocation import ContainerDemand, PodAllocation, PodDemand
from egpu.api.kubernetes import Pod
from egpu.api.objects import ClaimAllocation, ElasticGPUClaim, ElasticGPUClass
from egpu.api.vocabularies import ELASTIC
from egpu.core.demand.claims import claim_class, claim_demand
from egpu.core.demand.pods import claims_by_container, container_demand, init_names
from egpu.core.placement.fit import Request
from egpu.core.provisioners import provisioner
from egpu.errors import InvalidDemand

CLAIM_CONTAINER: Final = "claim"
"""Container name under which a claim by itself is placed and held."""


class Claims(Protocol):
    """What is known of claims and classes: `egpu.core.placement.cache.Feed`."""

    classes: dict[str, ElasticGPUClass]

    def claim(self, namespace: str, name: str) -> ElasticGPUClaim | None: ...

    def claim_allocation(self, uid: str) -> ClaimAllocation | None: ...

    def claim_user(self, key: str, *, besides: str = "") -> str | None: ...


def pod_request(pod: Pod, claims: Claims) -> Request:
    """What `pod` needs now. Raises InvalidDemand for a pod that admission would have refused."""
    containers: dict[str, ContainerDemand] = {}
    bound: dict[str, ClaimAllocation] = {}
    waiting: list[str] = []
    named = claims_by_container(pod)
    for container in pod.all_containers:
        if container.name in named:
            found, held, why = _claimed(pod, container.name, named[container.name], claims)
            containers[container.name] = found
            if held is not None:
                bound[container.name] = held
            waiting.append(why)
        elif demand := container_demand(pod, container):
            containers[container.name] = demand
            waiting.append(_not_built(container.name, demand))
    init, sidecars = init_names(pod)
    demand = PodDemand(
        containers=containers,
        init=tuple(name for name in init if name in containers),
        sidecars=tuple(name for name in sidecars if name in containers),
    )
    return Request(demand, bound, "; ".join(filter(None, waiting)))


def _claimed(
    pod: Pod, container: str, name: str, claims: Claims
) -> tuple[ContainerDemand, ClaimAllocation | None, str]:
    """The demand of a container that uses a claim, and its cards if the claim has some, and what it waits for."""
    demand = ContainerDemand(provisioner=ELASTIC.provisioner, claim=name)
    claim = claims.claim(pod.namespace, name)
    use = f"container {container} uses the claim {name}"
    if claim is None:
        return demand, None, f"{use}, which does not exist"
    held = claims.claim_allocation(claim.uid)
    immediate = True
    try:
        klass = claim_class(claim, claims.classes)
        demand = claim_demand(claim, klass)
        immediate = klass.binding_mode == "Immediate"
    except InvalidDemand as error:
        if held is None:  # a bound claim no longer needs its class
            return demand, None, f"{use}: {error}"
    if claim.metadata.deletion_timestamp:
        return demand, None, f"{use}, which is being deleted"
    if user := claims.claim_user(claim.key, besides=pod.uid):
        return demand, None, f"{use}, which pod {user} uses; one container can use it"
    if claim.status.phase == "Lost":
        return demand, None, f"{use}, whose slice is lost"
    if held is not None:
        return replace(demand, provisioner=held.container.provisioner), held, ""
    missing = _not_built(container, demand)
    if immediate:
        missing = f"{use}, which is not bound: {missing or 'no card has had room for it yet'}"
    return demand, None, missing


def claim_request(claim: ElasticGPUClaim, classes: Mapping[str, ElasticGPUClass]) -> Request:
    """What an unbound claim needs, as a pod of one container called CLAIM_CONTAINER. Raises InvalidDemand."""
    demand = claim_demand(claim, claim_class(claim, classes))
    return Request(PodDemand(containers={CLAIM_CONTAINER: demand}), waiting=_not_built(CLAIM_CONTAINER, demand))


def claim_allocations(request: Request, allocation: PodAllocation) -> dict[str, ClaimAllocation]:
    """The claims that a choice has just given cards to: claim name → what its status must say before the binding."""
    return {
        container.claim: ClaimAllocation(node=container.cards_node(allocation.node), container=container)
        for name, container in allocation.containers.items()
        if container.claim and name not in request.bound
    }


def _not_built(container: str, demand: ContainerDemand) -> str:
    """Why its technology cannot serve it yet; empty where it can."""
    technology = provisioner(demand.provisioner)
    missing = technology.missing
    return f"container {container} asks for {technology.name}, which {missing}" if missing else ""
