"""Why a pod waits, and what preemption would do about it: for `egpu explain`, from the plan that the extender makes."""

from dataclasses import replace

from egpu.api.kubernetes import Pod
from egpu.core.explain import Explanation, explain_pod
from egpu.core.placement.reservations import priority
from egpu.core.preemption.plan import plan
from egpu.core.preemption.scene import InVain, Scene, card_names


def explain_with_preemption(pod: Pod, scene: Scene) -> Explanation:
    """As `explain_pod`, as the pod itself may see the cluster."""
    nodes = sorted({*scene.nodes, *scene.cache.ledger.nodes()})
    with scene.cache.reservations.lifted(pod):
        found = explain_pod(pod, scene.cache, nodes, scene.policies)
    return replace(found, preemption=_preemption(pod, scene)) if found.state == "waiting" else found


def _preemption(pod: Pod, scene: Scene) -> str:
    reservations = scene.cache.reservations
    if pod.uid in reservations:
        reserved = reservations.get(pod.uid).reserved
        left = [one.key for one in scene.pods if one.uid in reserved.victims and not one.finished]
        ending = f", where {', '.join(sorted(left))} will end" if left else ""
        return f"{card_names(reserved.allocation)} is kept for it{ending}"
    found = plan(pod, scene)
    if isinstance(found, InVain):
        return f"nobody is evicted for it: {found.reason}"
    where = "; ".join(card_names(each) for each in found.allocations.values())
    if not found.victims:
        return f"nobody is evicted for it: pods are about to end on {where}"
    victims = ", ".join(f"{one.key} (priority {priority(one)})" for one in found.victims)
    return f"would evict {victims} for {where}"
