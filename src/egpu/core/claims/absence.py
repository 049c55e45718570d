"""What an object needs and is not there: a node, or a card of one. It is given up only when it stays away.

The clock is the caller's: `now` is in seconds, of any one clock.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.api.kubernetes import Pod
from egpu.api.objects import ElasticGPU, ElasticGPUClaim
from egpu.errors import CorruptData

MISSING_SECONDS = 30.0
"""How long a node or a card may be missing before what it held is given up: an agent starts again in less."""


@dataclass(frozen=True)
class Absence:
    """What is not there, as a sentence, and for how long it may still be waited for; 0: no longer."""

    what: str
    wait_seconds: float


class Absences:
    """Since when something that an object needs is missing, by the object's uid."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def look(self, uid: str, missing: str | None, *, now: float) -> Absence | None:
        """Take in that `missing` is not there now, or that nothing is (None)."""
        if missing is None:
            self._since.pop(uid, None)
            return None
        left = self._since.setdefault(uid, now) + MISSING_SECONDS - now
        if left <= 0:
            del self._since[uid]
        return Absence(missing, max(left, 0.0))


def missing_from(claim: ElasticGPUClaim, *, node_known: bool, published: Collection[str]) -> str | None:
    """What a bound claim holds and is not there: its node, or cards that are not among those `published` (by UUID) on
    that node. None for a claim that holds nothing."""
    held = claim.status.allocation
    if held is None:
        return None
    if not node_known:
        return f"node {held.node} is gone"
    missing = [share.uuid for share in held.container.cards if share.uuid not in published]
    return f"card {', '.join(missing)} of node {held.node} is gone" if missing else None


def sick_cards(claim: ElasticGPUClaim, cards: Iterable[ElasticGPU]) -> str:
    """What is wrong with those of the published `cards` that a claim has, as a sentence; empty where nothing is."""
    held = claim.status.allocation
    had = {share.uuid for share in held.container.cards} if held is not None else set[str]()
    wrong = [why_sick(gpu) for gpu in cards if not gpu.healthy and _uuid(gpu) in had]
    return "; ".join(sorted(wrong))


def why_sick(gpu: ElasticGPU) -> str:
    """What is wrong with a published card, as a sentence; empty for one that is well."""
    card = gpu.spec.physical_gpu
    if card is None or gpu.healthy:
        return ""
    return f"card {card.index} of node {gpu.spec.node_name} is unhealthy: {gpu.status.message or 'no reason given'}"


def users_of_card(gpu: ElasticGPU, pods: Iterable[Pod]) -> list[Pod]:
    """The pods that have a part of a published card, their own or a claim's, and have not ended."""
    return [pod for pod in pods if not pod.finished and _uuid(gpu) in _cards_of(pod)]


def _uuid(gpu: ElasticGPU) -> str | None:
    return gpu.spec.physical_gpu.uuid if gpu.spec.physical_gpu is not None else None


def _cards_of(pod: Pod) -> set[str]:
    try:
        given = decode_allocation(pod.annotations.get(names.ALLOCATION, ""))
    except CorruptData:
        return set()
    return {share.uuid for container in given.containers.values() for share in container.cards}
