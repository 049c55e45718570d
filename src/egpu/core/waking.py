"""The waiting pods that would find room now, and so are worth waking up the scheduler for. Pure.

The pods are placed tentatively, one after the other, each seeing those before it. So of a thousand pods that wait for
one free card, one is woken up.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from egpu.api.allocation import PodAllocation
from egpu.core.gangs.membership import Gang
from egpu.core.gangs.placing import place_gang
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.ledger import Holder
from egpu.core.placement.requests import Request
from egpu.core.policies.registry import Policies
from egpu.core.rests import Rests
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import CorruptData, DoesNotFit, InvalidInput, MissingExtra

MAX_LOOKED_AT: Final = 256
"""Different requests per search that find no room. Each namespace with waiting pods has an equal part of them. Equal
requests cost nothing once one of them found no room."""


class _Asked(NamedTuple):
    """A question whose answer is the same for all pods with it."""

    request: Request
    node_selector: Mapping[str, str]
    node_affinity: Mapping[str, Any]
    gang: Hashable
    """None for a pod alone. Another gang with equal pods may be smaller, or have other nodes."""

    @classmethod
    def by(cls, pod: Pod, request: Request, gang: Gang | None) -> "_Asked":
        affinity: Mapping[str, Any] = (pod.spec.affinity or {}).get("nodeAffinity") or {}
        return cls(request, pod.spec.node_selector or {}, affinity, gang and gang.key)

    def found_no_room(self, in_vain: Mapping[str, Sequence["_Asked"]]) -> bool:
        return any(self in asked for asked in in_vain.values())


def would_fit(
    waiting: Iterable[Pod], cache: SchedulerCache, nodes: Sequence[str], policies: Policies, rests: Rests
) -> list[Pod]:
    """Return the pods of `waiting` that have room at once on `nodes`, in the scheduler's order. Gangs of a namespace
    that rests are left out, and the next look begins with them. Changes nothing else."""
    held: list[Holder] = []
    fitting: list[Pod] = []
    in_vain: dict[str, list[_Asked]] = {}
    waiting = list(waiting)
    most_of_one = max(1, MAX_LOOKED_AT // max(1, len({pod.namespace for pod in waiting})))
    told: set[str] = set()
    left_out: dict[str, str] = {}
    with cache.ranking.supposing():
        try:
            for pod in _in_turn(waiting, cache, rests.left_out):
                had = in_vain.setdefault(pod.namespace, [])
                if pod.uid in told or len(had) >= most_of_one:
                    continue  # with another member of its gang; or its namespace has had its part
                try:
                    request, gang = cache.request(pod), cache.gangs.of(pod)
                    asked = _Asked.by(pod, request, gang)
                    if asked.found_no_room(in_vain) and not cache.reservations.own(pod):
                        continue  # it would see no more room than those before it
                    if gang is not None and rests.seconds(pod.namespace):
                        left_out.setdefault(pod.namespace, gang.terms.name)
                        continue
                    with cache.reservations.lifted(pod), rests.look(pod.namespace) as look:
                        found = _places(pod, gang, request, cache, nodes, policies=policies)
                        look.found = gang is None or bool(found)
                except (InvalidInput, CorruptData, DoesNotFit, MissingExtra):
                    continue  # the scheduler knows why, and room does not change it
                if not found:
                    had.append(asked)
                for member, allocation in found:
                    holder = Holder("pod", member.uid)
                    cache.ledger.release(Holder("reservation", member.uid))
                    cache.ledger.hold(holder, cache.held_by_pod(member.namespace, allocation))
                    held.append(holder)
                    told.add(member.uid)
                    fitting.append(member)
        finally:
            for holder in held:
                cache.ledger.release(holder)
                cache.reservations.recount(holder.id)
    rests.left_out = left_out
    return fitting


def _places(
    pod: Pod, gang: Gang | None, request: Request, cache: SchedulerCache, nodes: Sequence[str], *, policies: Policies
) -> list[tuple[Pod, PodAllocation]]:
    """Return the places of the pod and the waiting members of its gang; empty if there is no room."""
    if gang is not None:
        verdict = place_gang(cache, gang, policies, pod=pod, nodes=nodes, default_nodes=nodes)
        return [(one, verdict.allocations[one.uid]) for one in gang.waiting if one.uid in verdict.allocations]
    fits = [
        node for node in cache.filter(request, cache.selection.of(pod, nodes)).fits if _has_room(cache, request, node)
    ]
    if not fits:
        return []
    scores = cache.ranking.scores(request, fits, policies, all_fit=True)
    best = max(fits, key=lambda node: scores[node])
    return [(pod, cache.ranking.choose(request, best, policies))]


def _has_room(cache: SchedulerCache, request: Request, node: str) -> bool:
    """Return whether the scheduler, which checks CPU and memory first, would ask about the node."""
    free = cache.hosts.free(node)
    return free.cpu_milli >= request.cpu_milli and free.ram_mib >= request.ram_mib


def _in_turn(waiting: Iterable[Pod], cache: SchedulerCache, left_out: Mapping[str, str]) -> list[Pod]:
    """Return the pods in the scheduler's order. Of a namespace with gangs that were left out, those before the first of
    them come last: they found no room."""
    now: list[Pod] = []
    later: list[Pod] = []
    reached: set[str] = set()
    for pod in sorted(waiting, key=_turn):
        first = left_out.get(pod.namespace)
        gang = None if first is None or pod.namespace in reached else cache.gangs.of(pod)
        if gang is not None and gang.terms.name == first:
            reached.add(pod.namespace)
        elif gang is not None:
            later.append(pod)
            continue
        now.append(pod)
    return now + later


def _turn(pod: Pod) -> tuple[int, str, str]:
    return (-(pod.spec.priority or 0), pod.metadata.creation_timestamp or "", pod.uid)
