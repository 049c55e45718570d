"""Conditions of a claim: how a new one replaces the one before."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from egpu.api.objects import CARDS_PRESENT, ElasticGPUClaim
from egpu_base.api.objects import Condition

RESIZED: Final = "Resized"
"""True if a claim has the size in its spec. Written by the extender."""
CARDS_HEALTHY: Final = "CardsHealthy"
"""True if the claim's cards are healthy. Written by the controller, after one was unhealthy."""

CARDS_AWAY: Final = "CardsAway"
"""A reason of CARDS_PRESENT: the node or a card is away. The claim is Bound again when they are back."""
SLICE_DELETED: Final = "SliceDeleted"
"""The other reason: a slice of the claim was deleted. It stays Lost, and gives up its share when no pod uses it."""


def away(claim: ElasticGPUClaim) -> bool:
    """Return whether the claim lost its cards because they are away."""
    present = claim.status.condition(CARDS_PRESENT)
    return present is not None and (present.status, present.reason) == ("False", CARDS_AWAY)


def with_condition(conditions: Sequence[Condition], said: Condition, *, now: str) -> list[Condition] | None:
    """Return all conditions, with `said` in place of the one of its type; None if nothing changes. An unchanged status
    keeps its transition time; `now` is in Kubernetes' format."""
    before = next((one for one in conditions if one.type == said.type), None)
    if before is not None and replace(before, last_transition_time=None) == said:
        return None
    since = before.last_transition_time if before is not None and before.status == said.status else None
    others = [one for one in conditions if one.type != said.type]
    return [*others, replace(said, last_transition_time=since or now)]
