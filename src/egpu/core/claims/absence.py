"""What an object needs and is not there: a node, or a card of one. It is given up only when it stays away.

The clock is the caller's: `now` is in seconds, of any one clock.
"""

from collections.abc import Collection
from dataclasses import dataclass

from egpu.api.objects import ElasticGPUClaim

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
