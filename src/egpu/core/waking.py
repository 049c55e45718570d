"""The waiting pods that would find room now, and so are worth waking up the scheduler for. Pure.

The pods are placed tentatively, one after the other, each seeing those before it. So of a thousand pods that wait for
one free card, one is woken up.
"""

from collections.abc import Iterable, Sequence
from typing import Final

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
"""Different requests per search; equal requests cost nothing once one of them found no room."""


def would_fit(
    waiting: Iterable[Pod], cache: SchedulerCache, nodes: Sequence[str], policies: Policies, rests: Rests
) -> list[Pod]:
    """Return the pods of `waiting` that have room at once on `nodes`, in the scheduler's order. Gangs of a namespace
    that rests are left out. Changes nothing else."""
    held: list[Holder] = []
    fitting: list[Pod] = []
    in_vain: list[Request] = []
    told: set[str] = set()
    with cache.ranking.supposing():
        try:
            for pod in sorted(waiting, key=_turn):
                if len(in_vain) >= MAX_LOOKED_AT:
                    break
                if pod.uid in told:
                    continue  # with another member of its gang
                try:
                    request = cache.request(pod)
                    if request in in_vain and not cache.reservations.own(pod):
                        continue  # it would see no more room than those before it
                    gang = cache.gangs.of(pod)
                    if gang is not None and rests.seconds(pod.namespace):
                        continue
                    with cache.reservations.lifted(pod), rests.look(pod.namespace) as look:
                        found = _places(pod, gang, request, cache, nodes, policies=policies)
                        look.found = gang is None or bool(found)
                except (InvalidInput, CorruptData, DoesNotFit, MissingExtra):
                    continue  # the scheduler knows why, and room does not change it
                if not found:
                    in_vain.append(request)
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


def _turn(pod: Pod) -> tuple[int, str, str]:
    return (-(pod.spec.priority or 0), pod.metadata.creation_timestamp or "", pod.uid)
