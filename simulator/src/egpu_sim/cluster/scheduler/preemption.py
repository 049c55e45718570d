"""kube-scheduler's preemption: the pods that it would delete so that one of higher priority fits on their node. Pure.

It sees the *sums* of a node that it filters by; only the extender sees cards. Where a pod waits for a card and the sums
have room, evicting no pod seems to be enough, and kube-scheduler returns an error.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from egpu_base.api.kubernetes import Pod
from egpu_sim.cluster.scheduler.filters import Filters, NodeState, Rejection
from egpu_sim.cluster.scheduler.messages import unschedulable

NEVER = "Never"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"
DISRUPTION_TARGET = "DisruptionTarget"
BY_SCHEDULER = "PreemptionByScheduler"
_LOWEST = 2**31
"""Added to each priority of a sum, so that more pods of negative priority do not count for less."""


@dataclass(frozen=True)
class Victims:
    """The pods of one node that would have to go, the most important one first."""

    node: str
    pods: tuple[Pod, ...]


@dataclass(frozen=True)
class Found:
    """Candidates, or the reason for having none."""

    candidates: tuple[Victims, ...] = ()
    message: str = ""


def find(filters: Filters, states: Mapping[str, NodeState], potential: Collection[str]) -> Found:
    """Look at every node of `potential` as if the pods of lower priority were gone.

    Args:
        filters: of the pod that needs room.
        states: all nodes of the cluster.
        potential: the nodes that fewer pods might make fit.
    """
    candidates = list[Victims]()
    reasons: dict[str, tuple[str, ...]] = dict.fromkeys(states, (NOT_HELPFUL,))
    for name, state in states.items():
        if name not in potential:
            continue
        lower = [one for one in state.pods if _priority(one) < _priority(filters.pod)]
        if not lower:
            reasons[name] = (NO_VICTIMS,)
            continue
        victims = _victims(filters, state, lower)
        if not isinstance(victims, list):
            reasons[name] = victims
        elif not victims:
            return Found(message=f'expected at least one victim pod on node "{name}"')
        else:
            candidates.append(Victims(name, tuple(victims)))
    return Found(tuple(candidates)) if candidates else Found(message=unschedulable(len(states), reasons))


def best(candidates: Sequence[Victims]) -> Victims:
    """Return the node whose victims matter least: the lowest highest priority, then the lowest sum, then the fewest."""
    return min(
        candidates,
        key=lambda one: (
            max(map(_priority, one.pods)),
            sum(_priority(pod) + _LOWEST for pod in one.pods),
            len(one.pods),
        ),
    )


def terminating(pods: Collection[Pod]) -> bool:
    """Return whether a victim of an earlier preemption is still terminating."""
    return any(
        pod.metadata.deletion_timestamp is not None
        and any(one.type == DISRUPTION_TARGET and one.reason == BY_SCHEDULER for one in pod.status.conditions or [])
        for pod in pods
    )


def _victims(filters: Filters, state: NodeState, lower: Sequence[Pod]) -> list[Pod] | tuple[str, ...]:
    """Return the pods that have to go for the pod to fit. Return the reasons if it would not fit without all of
    them."""
    left, victims = state.without(lower), list[Pod]()
    if against := _rejection(filters, left):
        return against.reasons
    for one in sorted(lower, key=lambda one: (-_priority(one), one.status.start_time or "")):
        if _rejection(filters, beside := left.plus(one)):
            victims.append(one)
        else:
            left = beside
    return victims


def _rejection(filters: Filters, state: NodeState) -> Rejection | None:
    return filters.replacing(state).rejection(state)


def _priority(pod: Pod) -> int:
    return pod.spec.priority or 0
