"""Whom a pod may evict, who goes with whom, and what it costs: kube-scheduler's order of preference.

Evicting one member of a gang ends the whole gang, so it is counted whole: by its most important member, and against the
budgets of all.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Final, NamedTuple

from egpu.api import names
from egpu.api.kubernetes import Pod
from egpu.core.gangs.membership import Gang
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.ledger import Holder
from egpu.core.placement.reservations import priority
from egpu.core.placement.usage import CardKey, card_usage
from egpu.core.preemption.budgets import Budgets
from egpu.errors import InvalidDemand

_LOWEST: Final = 2**31
"""Added to each priority of a sum, so that more pods of negative priority do not count for less."""


class Cost(NamedTuple):
    """Less is better, from left to right: the highest priority among those who go, the sum of their priorities, how
    many they are, and how long ago the oldest of them started (as seconds since the epoch, negated). It never falls
    when another goes, too."""

    highest: int
    total: int
    pods: int
    age: float

    def plus(self, other: "Cost") -> "Cost":
        """What both cost together."""
        highest, age = max(self.highest, other.highest), max(self.age, other.age)
        return Cost(highest, self.total + other.total, self.pods + other.pods, age)


NOTHING: Final = Cost(-_LOWEST, 0, 0, float("-inf"))


@dataclass(frozen=True)
class Unit:
    """Pods that go together or not at all. `cards`: those that they hold something of; `nodes`: where they are."""

    pods: tuple[Pod, ...]
    cost: Cost
    charges: Mapping[str, int]
    cards: frozenset[CardKey]
    nodes: frozenset[str]


def cost_of(units: Iterable[Unit]) -> Cost:
    return reduce(Cost.plus, (unit.cost for unit in units), NOTHING)


def units_below(limit: int, pods: Iterable[Pod], cache: SchedulerCache, budgets: Budgets) -> list[Unit]:
    """Everybody with cards or a claim whose eviction takes nobody of priority `limit` or higher along, cheapest
    first."""
    found: list[Unit] = []
    seen: set[str] = set()
    for pod in pods:
        if pod.uid in seen or priority(pod) >= limit or not is_placed(pod):
            continue
        together = _together(pod, cache)
        seen.update(one.uid for one in together)
        if all(is_placed(one) and priority(one) < limit for one in together):
            found.append(_unit(together, cache, budgets))
    return sorted(found, key=lambda unit: (unit.cost, unit.pods[0].uid))


def is_placed(pod: Pod) -> bool:
    """Whether the pod has a node and cards, and has not ended."""
    return bool(pod.spec.node_name) and names.ALLOCATION in pod.annotations and not pod.finished


def _together(pod: Pod, cache: SchedulerCache) -> tuple[Pod, ...]:
    try:
        gang: Gang | None = cache.gangs.of(pod)
    except InvalidDemand:
        gang = None
    return gang.bound if gang is not None else (pod,)


def _unit(pods: tuple[Pod, ...], cache: SchedulerCache, budgets: Budgets) -> Unit:
    held = [held for pod in pods if (held := cache.ledger.holding(Holder("pod", pod.uid))) is not None]
    return Unit(
        pods=pods,
        cost=reduce(Cost.plus, (_cost(pod) for pod in pods)),
        charges=Counter(name for pod in pods for name in budgets.charges(pod)),
        cards=frozenset(key for allocation in held for key in card_usage(allocation)),
        nodes=frozenset(pod.spec.node_name for pod in pods),
    )


def _cost(pod: Pod) -> Cost:
    started = pod.status.start_time or pod.metadata.creation_timestamp
    age = -datetime.fromisoformat(started).timestamp() if started else 0.0
    return Cost(priority(pod), priority(pod) + _LOWEST, 1, age)
