"""Amounts by which kube-scheduler's sums of a node are too high.

kube-scheduler and kubelet add up what the pods of a node asked for when they were created. A pod's requests cannot
change, so a slice that shrank keeps its first size in these sums, and the freed part would be given to nobody. A node
therefore publishes as much more as its pods hold less than they asked for. The extender decides by the real cards."""

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation, decode_allocation
from egpu.api.vocabularies import BY_RESOURCE
from egpu_base.api.kubernetes import Container, Pod
from egpu_base.api.quantities import Quantity
from egpu_base.api.resources import container_requests, effective_requests
from egpu_base.errors import CorruptData


def asked_beyond_held(pods: Iterable[Pod]) -> dict[str, int]:
    """Return by resource how much more the bound `pods` ask for than they hold, in the resource's own unit.

    A pod without an allocation holds nothing: a static pod, or one of a namespace that the webhook does not see. One
    whose allocation cannot be read counts as it asks. A slice that is being made smaller counts with its new size:
    kubelet must know the node's amounts before the room is given to another pod."""
    beyond = Counter[str]()
    for pod in pods:
        if pod.finished or not pod.spec.node_name:
            continue
        text = pod.annotations.get(names.ALLOCATION)
        try:
            given = PodAllocation(node="", containers={}) if text is None else decode_allocation(text)
            beyond.update(_beyond(pod, given))
        except CorruptData:
            continue
    return dict(beyond)


def asked_in_use(pods: Iterable[Pod]) -> dict[str, int]:
    """Return by resource what the bound `pods` with an allocation ask for, as kube-scheduler adds it up."""
    asked = Counter[str]()
    for pod in pods:
        if names.ALLOCATION in pod.annotations and not pod.finished:
            asked.update({name: int(amount) for name, amount in effective_requests(pod, BY_RESOURCE).items()})
    return dict(asked)


def _beyond(pod: Pod, allocation: PodAllocation) -> Mapping[str, int]:
    asked = effective_requests(pod, BY_RESOURCE)
    held = effective_requests(_as_held(pod, allocation), BY_RESOURCE)
    return {name: int(amount - held[name]) for name, amount in asked.items() if amount > held[name]}


def _as_held(pod: Pod, allocation: PodAllocation) -> Pod:
    """Return the pod as if each container had asked for no more than it holds."""
    spec = pod.spec
    containers = [_holding(one, allocation.containers.get(one.name)) for one in pod.containers]
    inits = [_holding(one, allocation.containers.get(one.name)) for one in pod.init_containers]
    return replace(pod, spec=replace(spec, containers=containers, init_containers=inits))


def _holding(container: Container, allocated: ContainerAllocation | None) -> Container:
    needs = container.resources
    if needs is None:
        return container
    asked = container_requests(container, BY_RESOURCE)
    least: dict[str, Quantity] = {name: int(min(one, _held(name, one, allocated))) for name, one in asked.items()}
    return replace(container, resources=replace(needs, limits=least, requests=None))


def _held(resource: str, asked: Fraction, allocated: ContainerAllocation | None) -> Fraction:
    """Return how much of `resource` the container's cards are now; `asked` for a resource that no slice shrinks in."""
    if allocated is None:
        return Fraction(0)
    vocabulary, cards = BY_RESOURCE.get(resource), allocated.cards
    if vocabulary is None or allocated.exclusive or not cards:
        return asked
    together = max if vocabulary.per_card else sum
    if resource == vocabulary.core:
        return Fraction(together(one.core for one in cards))
    if resource == vocabulary.memory:
        return Fraction(together(one.memory_mib for one in cards) // vocabulary.memory_unit_mib)
    if resource == vocabulary.memory_percent:
        return Fraction(together(100 * one.memory_mib // max(1, one.card_memory_mib) for one in cards))
    if resource == vocabulary.tflops and allocated.revision:
        return Fraction(0)  # its cards' figures are not written down; too high a sum would refuse what fits
    return asked
