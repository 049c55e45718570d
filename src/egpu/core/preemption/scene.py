"""The input of a plan, and its result."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from egpu.api.allocation import PodAllocation
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.card_usage import card_usage
from egpu.core.policies.registry import Policies
from egpu.core.preemption.population import Population
from egpu_base.api.disruption import PodDisruptionBudget
from egpu_base.api.kubernetes import Node, Pod


@dataclass(frozen=True)
class Scene:
    """The cluster, as the input of a plan."""

    cache: SchedulerCache
    nodes: Mapping[str, Node]
    pods: Population
    budgets: Iterable[PodDisruptionBudget]
    policies: Policies


@dataclass(frozen=True)
class Plan:
    """`allocations` by pod UID, for the pod and the gang members that wait with it (`pods`). `victims` may be empty:
    then enough pods are about to end already."""

    pods: tuple[Pod, ...]
    allocations: Mapping[str, PodAllocation]
    victims: tuple[Pod, ...]


@dataclass(frozen=True)
class InVain:
    """The reason why no pod is evicted for a pod."""

    reason: str


def card_names(allocation: PodAllocation) -> str:
    """Name the cards for people: "card UUID of node NODE"; for the pool, with the nodes that have them."""
    by_node: dict[str, list[str]] = {}
    for key in sorted(card_usage(allocation)):
        by_node.setdefault(key.node, []).append(key.uuid)
    some = [f"card{'s' if len(uuids) > 1 else ''} {', '.join(uuids)} of node {node}" for node, uuids in by_node.items()]
    return " and ".join(some)
