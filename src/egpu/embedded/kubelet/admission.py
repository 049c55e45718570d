"""Whether this node takes a pod that was bound to it: the last check, after the scheduler's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from egpu.api.resources import effective_requests, whole_units
from egpu.embedded.kubelet.objects import Pod
from egpu.errors import TerminalError


class Rejected(TerminalError):
    """The pod fails with `reason` in its status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def check_fit(pod: Pod, others: Iterable[Pod], allocatable: Mapping[str, int]) -> None:
    """Raises Rejected("OutOf<resource>") when `pod` does not fit beside `others`.

    A resource that the node does not publish is not counted, as in a real kubelet: its capacity may be on its way.
    """
    used: dict[str, int] = {}
    for other in others:
        for resource, amount in _units(other).items():
            used[resource] = used.get(resource, 0) + amount
    for resource, wanted in sorted(_units(pod).items()):
        total = allocatable.get(resource)
        if total is None or not wanted:
            continue
        taken = used.get(resource, 0)
        if taken + wanted > total:
            raise Rejected(
                f"OutOf{resource}",
                f"Node didn't have enough resource: {resource}, requested: {wanted}, used: {taken}, capacity: {total}",
            )


def _units(pod: Pod) -> dict[str, int]:
    return {resource: whole_units(resource, amount) for resource, amount in effective_requests(pod).items()}
