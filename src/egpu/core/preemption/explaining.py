"""Why a pod waits, and what preemption would do about it: for `egpu explain`, from the plan that the extender makes."""

from dataclasses import replace
from typing import Final

from egpu.api.kubernetes import Pod
from egpu.core.explain import Explanation, explain_pod
from egpu.core.placement.reservations import priority
from egpu.core.preemption.objections import last_word, objections
from egpu.core.preemption.plan import plan
from egpu.core.preemption.scene import InVain, Scene, card_names
from egpu.core.preemption.sums import Sums, only_the_scheduler_can_tell

UNPLACED: Final = ("no-gpu", "waiting", "can-be-placed")


def explain_with_preemption(pod: Pod, scene: Scene) -> Explanation:
    """As `explain_pod`, as the pod itself may see the cluster, with what the scheduler says beside the cards."""
    nodes = sorted({*scene.nodes, *scene.cache.ledger.nodes()})
    with scene.cache.reservations.lifted(pod):
        found = explain_pod(pod, scene.cache, nodes, scene.policies)
    if found.state not in UNPLACED or pod.spec.node_name or pod.finished:
        return found
    if found.state == "waiting":
        found = replace(found, preemption=_preemption(pod, scene))
    return _with_the_scheduler(found, pod, scene)


def _with_the_scheduler(found: Explanation, pod: Pod, scene: Scene) -> Explanation:
    """What is found of the cards, and what Kubernetes' own scheduler would find."""
    against = objections(pod, scene.nodes, Sums(scene.nodes, scene.pods))
    scores = tuple((node, score) for node, score in found.scores if node not in against)
    summary, state, details = found.summary, found.state, found.details
    if found.scores and not scores:
        state = "waiting"
        summary = f"waits: {len(found.scores)} of {len(scene.nodes)} nodes have the cards for it, and none takes it"
    elif len(scores) < len(found.scores):
        summary = f"is not placed yet; {len(scores)} of {len(scene.nodes)} nodes have room for it"
    elif scene.nodes and against.keys() >= scene.nodes.keys():
        summary += "; none of the nodes would take it"
    if unknown := only_the_scheduler_can_tell(pod):
        details = (*details, f"whether {unknown} can be had on a node is not looked at here; the scheduler can tell")
    return replace(
        found, state=state, summary=summary, details=details, scores=scores,
        objections=tuple(against.items()), scheduler=last_word(pod),
    )  # fmt: skip


def _preemption(pod: Pod, scene: Scene) -> str:
    reservations = scene.cache.reservations
    if pod.uid in reservations:
        reserved = reservations.get(pod.uid).reserved
        left = [one.key for one in scene.pods.read(reserved.victims) if not one.finished]
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
