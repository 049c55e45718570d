"""Explanations of waiting pods with preemption, for `egpu explain`: from the same plan as the extender's."""

from dataclasses import replace
from typing import Final

from egpu.core.explain import Explanation, explain_pod
from egpu.core.placement.reservations import priority
from egpu.core.preemption.objections import last_word, objections
from egpu.core.preemption.plan import plan
from egpu.core.preemption.scene import InVain, Scene, card_names
from egpu.core.preemption.sums import Sums, only_the_scheduler_can_tell
from egpu_base.api.kubernetes import Pod

UNPLACED: Final = ("no-gpu", "waiting", "can-be-placed")


def explain_with_preemption(pod: Pod, scene: Scene) -> Explanation:
    """Explain as `explain_pod`, as the pod may see the cluster, and add the scheduler's view of nodes."""
    nodes = sorted({*scene.nodes, *scene.cache.ledger.nodes()})
    with scene.cache.reservations.lifted(pod):
        found = explain_pod(pod, scene.cache, nodes, scene.policies)
    if found.state not in UNPLACED or pod.spec.node_name or pod.finished:
        return found
    if found.state == "waiting":
        found = replace(found, preemption=preemption_of(pod, scene))
    return _with_the_scheduler(found, pod, scene)


def _with_the_scheduler(found: Explanation, pod: Pod, scene: Scene) -> Explanation:
    """Add what Kubernetes' own scheduler would find."""
    against = objections(pod, scene.nodes, Sums(scene.nodes, scene.pods))
    scores = tuple((node, score) for node, score in found.scores if node not in against)
    summary, state, details = found.summary, found.state, found.details
    if found.scores and not scores:
        state = "waiting"
        summary = f"waits: {len(found.scores)} of {len(scene.nodes)} nodes have the cards; the scheduler rejects them"
    elif len(scores) < len(found.scores):
        summary = f"is not placed yet; {len(scores)} of {len(scene.nodes)} nodes have room for it"
    elif scene.nodes and against.keys() >= scene.nodes.keys():
        summary += "; the scheduler would reject all nodes"
    if unknown := only_the_scheduler_can_tell(pod):
        details = (*details, f"{unknown} is not checked here; only the scheduler checks it")
    return replace(
        found, state=state, summary=summary, details=details, scores=scores,
        objections=tuple(against.items()), scheduler=last_word(pod),
    )  # fmt: skip


def preemption_of(pod: Pod, scene: Scene) -> str:
    """Return whom a waiting pod would evict, or why nobody."""
    reservations = scene.cache.reservations
    if pod.uid in reservations:
        reserved = reservations.get(pod.uid).reserved
        left = [one.key for one in scene.pods.read(reserved.victims) if not one.finished]
        ending = f"; these pods are ending there: {', '.join(sorted(left))}" if left else ""
        return f"{card_names(reserved.allocation)} is reserved for it{ending}"
    found = plan(pod, scene)
    if isinstance(found, InVain):
        return f"no pod is evicted for it: {found.reason}"
    where = "; ".join(card_names(each) for each in found.allocations.values())
    if not found.victims:
        return f"no pod is evicted for it: pods are already ending on {where}"
    victims = ", ".join(f"{one.key} (priority {priority(one)})" for one in found.victims)
    return f"would evict {victims} for {where}"
