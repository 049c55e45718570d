"""The possible victims of a pod, which of them are evicted as a unit, and their cost: kube-scheduler's preferences.

Evicting one member of a gang ends the whole gang, so a gang counts by its most important member and all its budgets.
The cards of a ResourceClaim are free when all of its users are gone, so several units may have to go for them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Final, NamedTuple

from egpu.api import names
from egpu.core.dra.held import holder
from egpu.core.gangs.membership import Gang
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.card_usage import CardKey, card_usage
from egpu.core.placement.ledger import Holder
from egpu.core.placement.reservations import priority
from egpu.core.preemption.budgets import Budgets
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import InvalidDemand

_LOWEST: Final = 2**31
"""Added to each priority of a sum, so that more pods of negative priority do not count for less."""


class Cost(NamedTuple):
    """The cost of victims; less is better, from left to right: the highest priority, the sum of priorities, the number
    of pods, and the age of the oldest (its start in seconds since the epoch, negated). Another victim never lowers
    it."""

    highest: int
    total: int
    pods: int
    age: float

    def plus(self, other: "Cost") -> "Cost":
        """Return the cost of both."""
        highest, age = max(self.highest, other.highest), max(self.age, other.age)
        return Cost(highest, self.total + other.total, self.pods + other.pods, age)


NOTHING: Final = Cost(-_LOWEST, 0, 0, float("-inf"))


@dataclass(frozen=True)
class Unit:
    """Pods that are evicted as a unit. `cards`: the cards that they hold a part of; `nodes`: their nodes; `holders`:
    the UIDs of the pods and ResourceClaims that hold them."""

    pods: tuple[Pod, ...]
    cost: Cost
    charges: Mapping[str, int]
    cards: frozenset[CardKey]
    nodes: frozenset[str]
    holders: frozenset[str]


def cost_of(units: Iterable[Unit]) -> Cost:
    return reduce(Cost.plus, (unit.cost for unit in units), NOTHING)


def units_below(limit: int, pods: Iterable[Pod], cache: SchedulerCache, budgets: Budgets) -> list[Unit]:
    """Return all units whose eviction takes only pods of a priority below `limit`, cheapest first."""
    found: list[Unit] = []
    seen: set[str] = set()
    for pod in pods:
        if pod.uid in seen or priority(pod) >= limit or not has_cards(pod, cache):
            continue
        members = _members(pod, cache)
        seen.update(one.uid for one in members)
        if all(has_cards(one, cache) and priority(one) < limit for one in members):
            found.append(_unit(members, cache, budgets))
    return sorted(found, key=lambda unit: (unit.cost, unit.pods[0].uid))


def may_have_cards(pod: Pod) -> bool:
    """Return whether the pod has a node and has not ended, and names cards or ResourceClaims."""
    named = names.ALLOCATION in pod.annotations or pod.spec.resource_claims
    return bool(pod.spec.node_name and named) and not pod.finished


def holds_cards(uid: str, cache: SchedulerCache) -> bool:
    """Return whether the pod with this UID holds cards in the ledger, itself or by ResourceClaims."""
    return cache.pod_allocation(uid) is not None or bool(cache.device_claims.held_by(uid))


def has_cards(pod: Pod, cache: SchedulerCache) -> bool:
    """Return whether the pod has a node and cards, and has not ended."""
    has = names.ALLOCATION in pod.annotations or cache.device_claims.held_by(pod.uid)
    return bool(has) and may_have_cards(pod)


def _members(pod: Pod, cache: SchedulerCache) -> tuple[Pod, ...]:
    try:
        gang: Gang | None = cache.gangs.of(pod)
    except InvalidDemand:
        gang = None
    return gang.bound if gang is not None else (pod,)


def _unit(pods: tuple[Pod, ...], cache: SchedulerCache, budgets: Budgets) -> Unit:
    claims = {uid for pod in pods for uid in cache.device_claims.held_by(pod.uid)}
    holders = [*(Holder("pod", pod.uid) for pod in pods), *map(holder, claims)]
    held = [held for one in holders if (held := cache.ledger.holding(one)) is not None]
    return Unit(
        pods=pods,
        cost=reduce(Cost.plus, (_cost(pod) for pod in pods)),
        charges=Counter(name for pod in pods for name in budgets.charges(pod)),
        cards=frozenset(key for allocation in held for key in card_usage(allocation)),
        nodes=frozenset(pod.spec.node_name for pod in pods),
        holders=frozenset(one.id for one in holders),
    )


def _cost(pod: Pod) -> Cost:
    started = pod.status.start_time or pod.metadata.creation_timestamp
    age = -datetime.fromisoformat(started).timestamp() if started else 0.0
    return Cost(priority(pod), priority(pod) + _LOWEST, 1, age)
