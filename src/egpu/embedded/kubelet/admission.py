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


def requested(pod: Pod) -> dict[str, int]:
    """What a pod takes of its node, in whole units by resource."""
    return {resource: whole_units(resource, amount) for resource, amount in effective_requests(pod).items()}


def check_fit(wanted: Mapping[str, int], others: Iterable[Mapping[str, int]], allocatable: Mapping[str, int]) -> None:
    """Raises Rejected("OutOf<resource>") when a pod that takes `wanted` does not fit beside `others`.

    A resource that the node does not publish is not counted, as in a real kubelet: its capacity may be on its way.
    """
    used: dict[str, int] = {}
    for other in others:
        for resource, amount in other.items():
            used[resource] = used.get(resource, 0) + amount
    for resource, amount in sorted(wanted.items()):
        total = allocatable.get(resource)
        if total is None or not amount:
            continue
        taken = used.get(resource, 0)
        if taken + amount > total:
            raise Rejected(
                f"OutOf{resource}",
                f"Node didn't have enough resource: {resource}, requested: {amount}, used: {taken}, capacity: {total}",
            )
