"""Explanations for users who may list one namespace only: from the pod's or the claim's own status."""

from egpu.cli.snapshot import Snapshot
from egpu.cli.views import NONE, allocation_of, asks_for_cards, gpu_containers, shares
from egpu.core.explain import Explanation
from egpu.core.preemption.objections import last_word
from egpu_base.errors import NotAllowed


def own_words(snapshot: Snapshot, what: str, namespace: str, name: str) -> Explanation | None:
    """Explain a pod or a claim of a snapshot that lacks other objects. None: there is no such object. Raises NotAllowed
    for a node, whose cards cannot be told from one namespace."""
    if what == "node":
        raise NotAllowed(f"node {name}: {snapshot.lack}. Ask an administrator for the role elastic-gpu-viewer")
    return _pod(snapshot, namespace, name) if what == "pod" else _claim(snapshot, namespace, name)


def _pod(snapshot: Snapshot, namespace: str, name: str) -> Explanation | None:
    pod = next((one for one in snapshot.pods if (one.namespace, one.name) == (namespace, name)), None)
    if pod is None:
        return None
    if not asks_for_cards(pod):
        return Explanation(pod.key, "no-gpu", "asks for no GPU; the scheduler alone places it")
    given = allocation_of(pod)
    if given is None:
        return Explanation(pod.key, "waiting", "waits", scheduler=last_word(pod))
    details = tuple(f"container {one} has {shares(given.containers[one])}" for one in gpu_containers(pod, given))
    if pod.finished:
        return Explanation(pod.key, "finished", f"ran on node {given.node}; its cards are released", details)
    return Explanation(pod.key, "placed", f"is on node {given.node}", details)


def _claim(snapshot: Snapshot, namespace: str, name: str) -> Explanation | None:
    claim = next((one for one in snapshot.claims if (one.namespace, one.name) == (namespace, name)), None)
    if claim is None:
        return None
    status = claim.status
    details = [f"{one.type} is {one.status}: {one.message or one.reason or NONE}" for one in status.conditions]
    if status.used_by:
        details.append(f"used by {', '.join(status.used_by)}")
    if status.allocation is not None:
        details.insert(0, f"has {shares(status.allocation.container)} of node {status.allocation.node}")
    phase = status.phase or "Pending"
    return Explanation(claim.key, phase.lower(), f"is {phase}", tuple(details), kind="claim")
