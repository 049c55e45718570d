"""The victims for a waiting pod, by card, and the cards that it then gets.

kube-scheduler looks for victims by the sums of a node. If a node has room in sum but on no card, it finds none.

A search takes some tenths of a second in a large cluster, so it can be made in slices. Between two of them the cluster
may change: a plan is checked again before any pod is evicted.
"""

from collections.abc import Callable, Generator
from typing import Final

from egpu.core.preemption.scene import InVain, Plan, Scene
from egpu.core.preemption.sums import RESOURCE_CLAIMS, only_the_scheduler_can_tell
from egpu.core.preemption.victim_search import VictimSearch
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import Conflict, CorruptData, InvalidInput, MissingExtra

NEVER: Final = "Never"


def plan(pod: Pod, scene: Scene) -> Plan | InVain:
    """Make a plan for `pod` and the waiting members of its gang. Changes nothing."""
    steps = plan_in_slices(pod, scene, due=lambda: False)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value


def plan_in_slices(pod: Pod, scene: Scene, *, due: Callable[[], bool]) -> Generator[None, None, Plan | InVain]:
    """Make a plan, and yield whenever a pause is `due`; during a pause nothing is tentative, and the cluster may
    change. So the result has to be `confirmed`."""
    cache = scene.cache
    try:
        gang = cache.gangs.of(pod)
        waiting = cache.request(pod).waiting
    except (InvalidInput, CorruptData) as error:
        return InVain(str(error))
    if gang is not None and (problem := gang.problem()):
        return InVain(problem)
    pods = gang.waiting if gang is not None else (pod,)
    for one in pods:
        if one.spec.preemption_policy == NEVER:
            return InVain("its preemptionPolicy is Never")
        what = only_the_scheduler_can_tell(one)
        if what == RESOURCE_CLAIMS and one.uid in cache.device_claims.unmet:
            if gang is not None:
                return InVain("no pod is evicted for a gang with ResourceClaims")
        elif what:
            return InVain(f"{what} cannot be checked in advance, so no pod is evicted")
    try:
        return (yield from VictimSearch(pod, gang, pods, scene, due).run())
    except (InvalidInput, CorruptData, MissingExtra) as error:
        return InVain(str(error) or waiting)


def confirmed(pod: Pod, found: Plan, scene: Scene) -> Plan:
    """Return the plan for `pod` in the later `scene`: the same victims, and the pods' places there. Raises Conflict if
    it is not right any more; a new plan would be."""
    gang = scene.cache.gangs.of(pod)
    pods = gang.waiting if gang is not None else (pod,)
    places = VictimSearch(pod, gang, pods, scene, lambda: False).places_without(found.victims)
    if not places:
        raise Conflict(f"pod {pod.key}: the cluster changed during the search; try again")
    return Plan(tuple(pods), places, found.victims)
