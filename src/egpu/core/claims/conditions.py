"""Conditions of a claim: what is said of it, since when, in place of what was said before."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from egpu.api.objects import Condition

RESIZED: Final = "Resized"
"""Whether a claim has what its spec asks for. Written by the extender."""
CARDS_HEALTHY: Final = "CardsHealthy"
"""Whether the cards that it has take work. Written by the controller, once one did not."""


def with_condition(conditions: Sequence[Condition], said: Condition, *, now: str) -> list[Condition] | None:
    """All conditions, with `said` in place of the one of its type; None where that says the same. What was so before
    keeps the time since when it is so; `now` is as Kubernetes writes times."""
    before = next((one for one in conditions if one.type == said.type), None)
    if before is not None and replace(before, last_transition_time=None) == said:
        return None
    since = before.last_transition_time if before is not None and before.status == said.status else None
    others = [one for one in conditions if one.type != said.type]
    return [*others, replace(said, last_transition_time=since or now)]
