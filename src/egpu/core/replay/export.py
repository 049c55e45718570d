"""A cluster as a trace: its nodes and its pods' requests, without their names."""

from collections.abc import Iterable

from egpu.api import names
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.hosts import PLENTY, Hosts, pod_requests
from egpu.core.policies.shapes import WHOLE_CARD, Machine, Shape
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.errors import CorruptData, InvalidInput

_MILLI_PER_PERCENT = WHOLE_CARD // 100


def machines_of(cache: SchedulerCache, nodes: Iterable[Node]) -> list[Machine]:
    """Return the nodes that have cards, in order of name. Unknown CPU or memory counts as 0."""
    hosts = Hosts()
    for node in nodes:
        hosts.node_changed(node)
    machines: list[Machine] = []
    for name in sorted(cache.ledger.nodes()):
        cards, total = cache.ledger.cards(name), hosts.total(name)
        cpu = 0 if total.cpu_milli == PLENTY else total.cpu_milli
        ram = 0 if total.ram_mib == PLENTY else total.ram_mib
        memory = max((card.memory_mib for card in cards), default=0)
        machines.append(Machine(name, cpu, ram, len(cards), cards[0].model if cards else "", memory))
    return machines


def shapes_of(cache: SchedulerCache, pods: Iterable[Pod]) -> list[Shape]:
    """Return the request of each pod, oldest first, by its hardest GPU container. Pods whose demand is not valid, or
    depends on the card (TFLOPS), are left out."""
    return [shape for _, shape in _asked(cache, pods)]


def trace_of(cache: SchedulerCache, pods: Iterable[Pod]) -> tuple[list[Shape], list[str]]:
    """Return `shapes_of`, and a number for the gang of each pod that is in one, "" for the others."""
    asked = _asked(cache, pods)
    numbers: dict[str, str] = {}
    gangs: list[str] = []
    for pod, shape in asked:
        name = pod.annotations.get(names.GANG) if shape.cards else None
        gangs.append("" if name is None else numbers.setdefault(f"{pod.namespace}/{name}", str(len(numbers) + 1)))
    return [shape for _, shape in asked], gangs


def _asked(cache: SchedulerCache, pods: Iterable[Pod]) -> list[tuple[Pod, Shape]]:
    found: list[tuple[Pod, Shape]] = []
    for pod in sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.key)):
        room = pod_requests(pod)
        try:
            request = cache.request(pod)
        except (InvalidInput, CorruptData):
            continue
        demands = list(request.demand.containers.values())
        if not demands:
            found.append((pod, Shape(room.cpu_milli, room.ram_mib)))
            continue
        hardest = max(demands, key=lambda demand: (demand.exclusive, demand.cards, demand.memory_mib, demand.core))
        core = WHOLE_CARD if hardest.exclusive else min(hardest.core * _MILLI_PER_PERCENT, WHOLE_CARD)
        memory = 0 if hardest.exclusive else hardest.memory_mib
        if core or memory:
            shape = Shape(room.cpu_milli, room.ram_mib, hardest.cards, core, memory, request.models)
            found.append((pod, shape))
    return found
