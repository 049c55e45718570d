"""Requests of pods and claims: what to place, which claims have cards already, and what the pod waits for."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerDemand, PodAllocation, PodDemand
from egpu.api.objects import CARDS_PRESENT, ClaimAllocation, ElasticGPUClaim, ElasticGPUClass
from egpu.api.vocabularies import ELASTIC
from egpu.core.demand.claims import claim_class, claim_demand
from egpu.core.demand.classes import POLICY
from egpu.core.demand.pods import claims_by_container, container_demand, pod_demand
from egpu.core.kept_pods import MOST_BYTES, bare
from egpu.core.policies.registry import CLUSTER_NAMES, Policies
from egpu.core.provisioners import provisioner
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import InvalidDemand

CLAIM_CONTAINER: Final = "claim"
"""The container name of a claim that is placed and held by itself."""


KNOWN_LIMIT: Final = 256
"""Pods whose requests are cached."""
_SEVERAL_PODS: Final = "end that pod first (strategy Recreate), or give each pod a claim of its own by a template"
"""The advice for pods that wait for the claim of another."""


@dataclass(frozen=True)
class Request:
    """The demands to place. `demand` lists every GPU container; those in `bound` use a claim that has its cards.

    `waiting`: why no node can take the pod now (such as a claim that is not bound).
    """

    demand: PodDemand
    bound: Mapping[str, ClaimAllocation] = field(default_factory=dict[str, ClaimAllocation])
    waiting: str = ""
    cpu_milli: int = 0
    ram_mib: int = 0
    """CPU and memory of the pod, for scoring; fitting ignores them."""
    models: tuple[str, ...] = ()
    """Card models of the nodes that it selects, () for any, for scoring; the scheduler offers no others."""
    policy: str = ""
    """The policy that the classes of its demand set, "" if none does or they disagree."""

    def policies(self, default: Policies) -> Policies:
        """Return the policies to place it with: its classes', or else the process's own."""
        return Policies(self.policy, self.policy) if self.policy else default

    @cached_property
    def open(self) -> dict[str, ContainerDemand]:
        """The containers that need cards, in the order of placing: apps and sidecars before plain init containers
        (which then reuse their cards), the hardest to place first."""
        todo = {name: demand for name, demand in self.demand.containers.items() if name not in self.bound}
        init = self.demand.init

        def difficulty(name: str) -> tuple[bool, bool, int, int, int, int, str]:
            demand = todo[name]
            size = (-demand.cards, -demand.tflops, -demand.memory_mib, -demand.core)
            return (name in init, not demand.exclusive, *size, name)

        return {name: todo[name] for name in sorted(todo, key=difficulty)}

    @cached_property
    def local(self) -> dict[str, ContainerDemand]:
        """The part of `open` that needs cards of the node itself."""
        return {name: demand for name, demand in self.open.items() if not provisioner(demand.provisioner).anywhere}

    @cached_property
    def pooled(self) -> dict[str, ContainerDemand]:
        """The part of `open` whose cards may be on another node."""
        return {name: demand for name, demand in self.open.items() if provisioner(demand.provisioner).anywhere}


class KnownRequests:
    """The latest requests: filter, prioritize and bind ask about a pod one after the other. A request of a pod without
    claims depends on itself, on the nodes that it selects, and on the classes, after whose changes `clear` is
    called."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[bytes, Request]] = OrderedDict()

    def of(self, pod: Pod, models: tuple[str, ...]) -> Request | None:
        """Return the cached request of the pod, if its spec, annotations and models are unchanged. Other fields have no
        influence: a scheduler often writes conditions into a pod's status."""
        known, request = self._known.get(pod.uid, (None, None))
        if known is None or request is None or request.models != models:
            return None
        return request if known == _deciding(pod) else None

    def keep(self, pod: Pod, request: Request) -> None:
        """Cache a request, unless the pod waits or uses a claim, as it then depends on more, or is large."""
        if request.waiting or any(demand.claim for demand in request.demand.containers.values()):
            return
        if len(deciding := _deciding(pod)) > MOST_BYTES:
            return
        self._known[pod.uid] = deciding, request
        if len(self._known) > KNOWN_LIMIT:
            self._known.popitem(last=False)

    def clear(self) -> None:
        self._known.clear()


def _deciding(pod: Pod) -> bytes:
    """Return the part of a pod that its request depends on. It is the same in a whole pod and in a kept one."""
    return msgspec.msgpack.encode((bare(pod.spec, tolerations=None, volumes=None), pod.metadata.annotations))


class Claims(Protocol):
    """Lookup of claims and classes: `egpu.core.placement.cache.SchedulerCache`."""

    classes: dict[str, ElasticGPUClass]

    def claim(self, namespace: str, name: str) -> ElasticGPUClaim | None: ...

    def claim_allocation(self, uid: str) -> ClaimAllocation | None: ...

    def claim_user(self, key: str, *, besides: str = "") -> str | None: ...


def awaits_placement(pod: Pod) -> bool:
    """Return whether the pod asks for cards and has no node yet."""
    return not pod.spec.node_name and names.DEMAND in pod.annotations and not pod.finished


def pod_request(pod: Pod, claims: Claims) -> Request:
    """Return what `pod` needs now. Raises InvalidDemand for a pod that admission would refuse."""
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
    policy = class_policy(containers.values(), claims.classes)
    return Request(pod_demand(pod, containers), bound, "; ".join(filter(None, waiting)), policy=policy)


def _claimed(
    pod: Pod, container: str, name: str, claims: Claims
) -> tuple[ContainerDemand, ClaimAllocation | None, str]:
    """Return the demand of a container that uses a claim, the claim's cards, and what the container waits for."""
    demand = ContainerDemand(provisioner=ELASTIC.provisioner, claim=name)
    claim = claims.claim(pod.namespace, name)
    use = f"container {container} uses the claim {name}"
    if claim is None:
        made = names.CLAIM_TEMPLATE_PREFIX + container in pod.annotations
        return demand, None, f"{use}, which {'is being made' if made else 'does not exist'}"
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
    shared = held.container.shared_claim if held is not None else demand.shared_claim
    user = claims.claim_user(claim.key, besides=pod.uid)
    if user and not shared:
        return demand, None, f"{use}, which pod {user} uses; its class allows one pod at a time: {_SEVERAL_PODS}"
    if shared and (held or user) and claim.status.phase in (None, "Pending"):
        # Until it is Bound, its cards are released if the binding of its first pod fails.
        return demand, None, f"{use}, which is being bound"
    if claim.status.phase == "Lost":
        lost = claim.status.condition(CARDS_PRESENT)
        why = lost.message if lost is not None else "delete the claim and create it again"
        return demand, None, f"{use}, which is Lost: {why}"
    if held is not None:
        return replace(demand, provisioner=held.container.provisioner), held, ""
    return demand, None, f"{use}, which is not bound yet: no card had room for it" if immediate else ""


def claim_request(claim: ElasticGPUClaim, classes: Mapping[str, ElasticGPUClass]) -> Request:
    """Return what an unbound claim needs, as a pod of one container called CLAIM_CONTAINER. Raises InvalidDemand."""
    demand = claim_demand(claim, claim_class(claim, classes))
    policy = class_policy([demand], classes)
    return Request(PodDemand(containers={CLAIM_CONTAINER: demand}), policy=policy)


def claim_allocations(request: Request, allocation: PodAllocation) -> dict[str, ClaimAllocation]:
    """Return the claims that a choice gives cards to: claim name → the allocation in its status before the binding."""
    return {
        container.claim: ClaimAllocation(node=container.cards_node(allocation.node), container=container)
        for name, container in allocation.containers.items()
        if container.claim and name not in request.bound
    }


def class_policy(demands: Iterable[ContainerDemand], classes: Mapping[str, ElasticGPUClass]) -> str:
    """Return the policy that the demands' classes agree on, if it is known: older classes were not checked."""
    asked: set[str] = set()
    for demand in demands:
        found = classes.get(demand.class_name)
        if found is not None and (name := (found.parameters or {}).get(POLICY)):
            asked.add(name)
    return asked.pop() if len(asked) == 1 and asked <= set(CLUSTER_NAMES) else ""
