"""Admission of a pod that was bound to this node: the last check, after the scheduler's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from egpu_base.api.resources import effective_requests, whole_units
from egpu_base.errors import TerminalError
from egpu_sim.cluster.kubelet.objects import Pod


class Rejected(TerminalError):
    """The pod fails with `reason` in its status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def requested(pod: Pod) -> dict[str, int]:
    """Return the resources that a pod takes of its node, in whole units."""
    return {resource: whole_units(resource, amount) for resource, amount in effective_requests(pod).items()}


def check_fit(wanted: Mapping[str, int], others: Iterable[Mapping[str, int]], allocatable: Mapping[str, int]) -> None:
    """Raise Rejected("OutOf<resource>") when a pod that takes `wanted` does not fit beside `others`.

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
