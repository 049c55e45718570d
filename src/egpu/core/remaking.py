"""GPU pods that a kubelet refused for lack of room, and the pods that replace them.

Two schedulers on one node can give out its CPU or memory twice. The kubelet then refuses one pod for good: its phase is
Failed, with a reason such as OutOfcpu, and no container has run. A pod with an owner is replaced by it; one without is
lost, unless it is made again.
"""

import copy
from typing import Any, Final

from egpu.api import names
from egpu.core.admission import WRITTEN_LATER
from egpu_base.api.kubernetes import ContainerStatus, Pod

REASON: Final = "OutOf"
"""The beginning of the kubelet's reason; the name of a resource follows."""
LONGEST_SECONDS: Final = 300.0
_MOST_TIMES: Final = 99
"""Counted no further: the delay is the longest long before."""
_KEPT: Final = ("name", "namespace", "labels", "annotations", "finalizers")
"""Metadata of a pod that its author writes."""
_OF_THE_RUN: Final = ("nodeName", "ephemeralContainers")
"""Fields of a pod's spec that others have written."""


def is_refused(pod: Pod) -> bool:
    """Return whether a pod is to be made again: it asks for a GPU, nobody owns it, and a kubelet had no room for it
    before any of its containers ran."""
    status = pod.status
    return (
        names.DEMAND in pod.annotations
        and status.phase == "Failed"
        and status.reason.startswith(REASON)
        and not pod.metadata.owner_references
        and pod.metadata.deletion_timestamp is None
        and not any(map(_has_run, [*(status.init_container_statuses or []), *(status.container_statuses or [])]))
    )


def delay_seconds(pod: Pod) -> float:
    """Return how long to wait before the pod is made again: not at all the first time, then twice as long each time."""
    times = _times(pod.annotations)
    return min(2.0 ** (times - 1), LONGEST_SECONDS) if times else 0.0


def remade(refused: dict[str, Any]) -> dict[str, Any]:
    """Return the pod to make in the place of a refused one, as JSON. The spec is the same, without a node."""
    metadata, spec = refused["metadata"], copy.deepcopy(refused["spec"])
    for field in _OF_THE_RUN:
        spec.pop(field, None)
    kept = {field: metadata[field] for field in _KEPT if field in metadata}
    given: dict[str, str] = metadata.get("annotations", {})
    annotations = {key: value for key, value in given.items() if not key.startswith(WRITTEN_LATER)}
    for key in given:
        if key.startswith(names.CLAIM_TEMPLATE_PREFIX):  # the webhook names a claim of its own again
            container = key.removeprefix(names.CLAIM_TEMPLATE_PREFIX)
            for prefix in names.CLAIM_PREFIXES:
                annotations.pop(prefix + container, None)
    annotations[names.REMADE] = str(_times(given) + 1)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**kept, "annotations": annotations}, "spec": spec}


def _times(annotations: dict[str, str]) -> int:
    text = annotations.get(names.REMADE, "")
    return min(int(text), _MOST_TIMES) if text.isascii() and text.isdigit() and len(text) < 5 else 0


def _has_run(status: ContainerStatus) -> bool:
    state = status.state
    return bool(status.restart_count or (state is not None and (state.running or state.terminated)))
