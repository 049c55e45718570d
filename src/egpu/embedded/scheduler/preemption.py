"""kube-scheduler's preemption: which pods it would delete so that another of higher priority fits on their node. Pure.

It sees what it filters by, the *sums* of a node; cards are the extender's. So where a pod waits for a card while the
node's sums have room, evicting nobody already seems to help, and kube-scheduler gives up with an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from egpu.api.kubernetes import Node, Pod
from egpu.api.resources import Amounts, effective_requests
from egpu.core.placement.node_filters import rejection
from egpu.embedded.scheduler.messages import unschedulable

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
    """Candidates, or why there are none."""

    candidates: tuple[Victims, ...] = ()
    message: str = ""


def find(
    pod: Pod,
    nodes: Sequence[Node],
    potential: Sequence[Node],
    placed: Mapping[str, Sequence[Pod]],
    used: Mapping[str, Mapping[str, Fraction]],
) -> Found:
    """Looks at every node of `potential` as if the pods of lower priority were gone.

    Args:
        nodes: all of the cluster.
        potential: those that fewer pods might make fit.
        placed: pods by node.
        used: what they hold, by node.
    """
    requests, candidates, reasons = effective_requests(pod), list[Victims](), dict[str, Sequence[str]]()
    for node in potential:
        lower = [one for one in placed.get(node.name, ()) if _priority(one) < _priority(pod)]
        if not lower:
            reasons[node.name] = (NO_VICTIMS,)
            continue
        victims = _victims(pod, node, requests, lower, used[node.name])
        if not isinstance(victims, list):
            reasons[node.name] = victims
        elif not victims:
            return Found(message=f'expected at least one victim pod on node "{node.name}"')
        else:
            candidates.append(Victims(node.name, tuple(victims)))
    if candidates:
        return Found(tuple(candidates))
    known = {node.name: reasons.get(node.name, (NOT_HELPFUL,)) for node in nodes}
    return Found(message=unschedulable(len(nodes), known))


def best(candidates: Sequence[Victims]) -> Victims:
    """The node whose victims matter least: the lowest highest priority, then the lowest sum, then the fewest."""
    return min(
        candidates,
        key=lambda one: (
            max(map(_priority, one.pods)),
            sum(_priority(pod) + _LOWEST for pod in one.pods),
            len(one.pods),
        ),
    )


def terminating(pods: Sequence[Pod]) -> bool:
    """Whether a victim of an earlier preemption is still about to go."""
    return any(
        pod.metadata.deletion_timestamp is not None
        and any(one.type == DISRUPTION_TARGET and one.reason == BY_SCHEDULER for one in pod.status.conditions or [])
        for pod in pods
    )


def _victims(
    pod: Pod, node: Node, requests: Amounts, lower: Sequence[Pod], used: Mapping[str, Fraction]
) -> list[Pod] | tuple[str, ...]:
    """Who has to go for the pod to fit by the sums; the reasons, when it would not even with all of them gone."""
    left = dict(used)
    for one in lower:
        _add(left, one, -1)
    if (against := rejection(pod, node, requests=requests, used=left)) is not None:
        return against.reasons
    victims: list[Pod] = []
    for one in sorted(lower, key=lambda one: (-_priority(one), one.status.start_time or "")):
        _add(left, one, 1)
        if rejection(pod, node, requests=requests, used=left) is not None:
            _add(left, one, -1)
            victims.append(one)
    return victims


def _add(amounts: Amounts, pod: Pod, sign: int) -> None:
    for name, amount in effective_requests(pod).items():
        amounts[name] = amounts.get(name, Fraction(0)) + sign * amount


def _priority(pod: Pod) -> int:
    return pod.spec.priority or 0
