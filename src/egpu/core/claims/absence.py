"""Missing nodes and cards of an object. The object gives them up only after a while.

The caller provides the clock: `now` is in seconds, of any one clock.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.api.objects import ElasticGPU, ElasticGPUClaim
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import CorruptData

MISSING_SECONDS = 30.0
"""Seconds that a node or a card may be missing before its slices are given up: an agent restarts in less."""


@dataclass(frozen=True)
class Absence:
    """A missing object, as a sentence, and the seconds left to wait for it; 0: none."""

    what: str
    wait_seconds: float


class Absences:
    """The time since when something that an object needs is missing, by the object's UID."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def look(self, uid: str, missing: str | None, *, now: float) -> Absence | None:
        """Record that `missing` is missing now, or that nothing is (None)."""
        if missing is None:
            self._since.pop(uid, None)
            return None
        left = self._since.setdefault(uid, now) + MISSING_SECONDS - now
        if left <= 0:
            del self._since[uid]
        return Absence(missing, max(left, 0.0))


def missing_from(claim: ElasticGPUClaim, *, node_known: bool, published: Collection[str]) -> str | None:
    """Return what a bound claim holds and is missing: its node, or cards that are not `published` (by UUID) on that
    node. None for a claim that holds nothing."""
    held = claim.status.allocation
    if held is None:
        return None
    if not node_known:
        return f"node {held.node} is gone"
    missing = [share.uuid for share in held.container.cards if share.uuid not in published]
    return f"card {', '.join(missing)} of node {held.node} is gone" if missing else None


def sick_cards(claim: ElasticGPUClaim, cards: Iterable[ElasticGPU]) -> str:
    """Describe the unhealthy cards of a claim, of the published `cards`; empty if all are healthy."""
    held = claim.status.allocation
    had = {share.uuid for share in held.container.cards} if held is not None else set[str]()
    wrong = [why_sick(gpu) for gpu in cards if not gpu.healthy and _uuid(gpu) in had]
    return "; ".join(sorted(wrong))


def why_sick(gpu: ElasticGPU) -> str:
    """Describe why a published card is unhealthy; empty for a healthy one."""
    card = gpu.spec.physical_gpu
    if card is None or gpu.healthy:
        return ""
    return f"card {card.index} of node {gpu.spec.node_name} is unhealthy: {gpu.status.message or 'no reason given'}"


def users_of_card(gpu: ElasticGPU, pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods that hold a part of a published card, or use a claim that does, and have not ended."""
    return [pod for pod in pods if not pod.finished and _uuid(gpu) in _cards_of(pod)]


def _uuid(gpu: ElasticGPU) -> str | None:
    return gpu.spec.physical_gpu.uuid if gpu.spec.physical_gpu is not None else None


def _cards_of(pod: Pod) -> set[str]:
    try:
        allocation = decode_allocation(pod.annotations.get(names.ALLOCATION, ""))
    except CorruptData:
        return set()
    return {share.uuid for container in allocation.containers.values() for share in container.cards}
