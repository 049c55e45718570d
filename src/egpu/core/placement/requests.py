"""From a pod or a claim to a `Request`: what has to be placed, what its claims have already, and what it waits for."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Protocol

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerDemand, PodAllocation, PodDemand
from egpu.api.kubernetes import Pod
from egpu.api.objects import ClaimAllocation, ElasticGPUClaim, ElasticGPUClass
from egpu.api.vocabularies import ELASTIC
from egpu.core.demand.claims import claim_class, claim_demand
from egpu.core.demand.pods import claims_by_container, container_demand, init_names
from egpu.core.policies.registry import CLUSTER_NAMES, Policies
from egpu.core.provisioners import provisioner
from egpu.errors import InvalidDemand

CLAIM_CONTAINER: Final = "claim"
"""Container name under which a claim by itself is placed and held."""


KNOWN_LIMIT: Final = 256
"""Pods whose requests are kept."""
POLICY_PARAMETER: Final = "policy"
"""Class parameter: the policy, for node and cards, of demands of that class."""


@dataclass(frozen=True)
class Request:
    """What is to be placed. `demand` lists every GPU container; those in `bound` use a claim that has its cards.

    `waiting` is a reason for which no node can take the pod now (a claim that is not bound, a technology not built).
    """

    demand: PodDemand
    bound: Mapping[str, ClaimAllocation] = field(default_factory=dict[str, ClaimAllocation])
    waiting: str = ""
    cpu_milli: int = 0
    ram_mib: int = 0
    """CPU and memory that the pod asks for: scoring looks at them, fitting does not."""
    models: tuple[str, ...] = ()
    """Card models of the nodes that it selects, () for any: scoring looks at them; the scheduler offers no others."""
    policy: str = ""
    """The policy that the classes of its demand ask for, "" where none does or they disagree."""

    def policies(self, default: Policies) -> Policies:
        """By which policies it is placed: its classes', or else the process's own."""
        return Policies(self.policy, self.policy) if self.policy else default

    @cached_property
    def open(self) -> dict[str, ContainerDemand]:
        """The containers that need cards chosen, in the order of placing: apps and sidecars before plain init
        containers (which then reuse their cards), the hardest to place first."""
        todo = {name: demand for name, demand in self.demand.containers.items() if name not in self.bound}
        init = self.demand.init

        def difficulty(name: str) -> tuple[bool, bool, int, int, int, int, str]:
            demand = todo[name]
            size = (-demand.cards, -demand.tflops, -demand.memory_mib, -demand.core)
            return (name in init, not demand.exclusive, *size, name)

        return {name: todo[name] for name in sorted(todo, key=difficulty)}

    @cached_property
    def local(self) -> dict[str, ContainerDemand]:
        """Those of `open` whose cards have to be the node's own."""
        return {name: demand for name, demand in self.open.items() if not provisioner(demand.provisioner).anywhere}

    @cached_property
    def pooled(self) -> dict[str, ContainerDemand]:
        """Those of `open` whose cards may be another node's."""
        return {name: demand for name, demand in self.open.items() if provisioner(demand.provisioner).anywhere}


class KnownRequests:
    """The latest requests, for filter, prioritize and bind ask about a pod one after the other. What a pod without
    claims needs depends on itself, on the nodes that it selects, and on the classes: who has those, `clear`s."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[Pod, Request]] = OrderedDict()

    def of(self, pod: Pod, models: tuple[str, ...]) -> Request | None:
        """The request of the pod, if it asks for the same as then, selecting nodes of these models. Of what is not
        looked at here nothing depends: a scheduler writes conditions into a pod's status again and again."""
        known, request = self._known.get(pod.uid, (None, None))
        if known is None or request is None or request.models != models:
            return None
        return request if known.spec == pod.spec and known.annotations == pod.annotations else None

    def keep(self, pod: Pod, request: Request) -> None:
        """Nothing is kept of a pod that waits, or uses a claim: it depends on more."""
        if request.waiting or any(demand.claim for demand in request.demand.containers.values()):
            return
        self._known[pod.uid] = pod, request
        if len(self._known) > KNOWN_LIMIT:
            self._known.popitem(last=False)

    def clear(self) -> None:
        self._known.clear()


class Claims(Protocol):
    """What is known of claims and classes: `egpu.core.placement.cache.SchedulerCache`."""

    classes: dict[str, ElasticGPUClass]

    def claim(self, namespace: str, name: str) -> ElasticGPUClaim | None: ...

    def claim_allocation(self, uid: str) -> ClaimAllocation | None: ...

    def claim_user(self, key: str, *, besides: str = "") -> str | None: ...


def awaits_placement(pod: Pod) -> bool:
    """Whether the pod asks for cards and has no node yet."""
    return not pod.spec.node_name and names.DEMAND in pod.annotations and not pod.finished


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
    init, sidecars = init_names(pod)
    demand = PodDemand(
        containers=containers,
        init=tuple(name for name in init if name in containers),
        sidecars=tuple(name for name in sidecars if name in containers),
    )
    policy = _class_policy(containers.values(), claims.classes)
    return Request(demand, bound, "; ".join(filter(None, waiting)), policy=policy)


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
    shared = held.container.shared_claim if held is not None else demand.shared_claim
    user = claims.claim_user(claim.key, besides=pod.uid)
    if user and not shared:
        return demand, None, f"{use}, which pod {user} uses; its class lets one pod use it at a time"
    if shared and (held or user) and claim.status.phase in (None, "Pending"):
        # Until it is Bound, its cards are taken back if the binding of the pod that they were chosen with fails.
        return demand, None, f"{use}, which is being bound"
    if claim.status.phase == "Lost":
        return demand, None, f"{use}, whose slice is lost"
    if held is not None:
        return replace(demand, provisioner=held.container.provisioner), held, ""
    return demand, None, f"{use}, which is not bound: no card has had room for it yet" if immediate else ""


def claim_request(claim: ElasticGPUClaim, classes: Mapping[str, ElasticGPUClass]) -> Request:
    """What an unbound claim needs, as a pod of one container called CLAIM_CONTAINER. Raises InvalidDemand."""
    demand = claim_demand(claim, claim_class(claim, classes))
    policy = _class_policy([demand], classes)
    return Request(PodDemand(containers={CLAIM_CONTAINER: demand}), policy=policy)


def claim_allocations(request: Request, allocation: PodAllocation) -> dict[str, ClaimAllocation]:
    """The claims that a choice has just given cards to: claim name → what its status must say before the binding."""
    return {
        container.claim: ClaimAllocation(node=container.cards_node(allocation.node), container=container)
        for name, container in allocation.containers.items()
        if container.claim and name not in request.bound
    }


def _class_policy(demands: Iterable[ContainerDemand], classes: Mapping[str, ElasticGPUClass]) -> str:
    """The policy that the classes of the demands ask for, where they agree. One that is not known (of a class from
    before admission checked it) must not stop its pods."""
    asked: set[str] = set()
    for demand in demands:
        found = classes.get(demand.class_name)
        if found is not None and (name := (found.parameters or {}).get(POLICY_PARAMETER)):
            asked.add(name)
    return asked.pop() if len(asked) == 1 and asked <= set(CLUSTER_NAMES) else ""
