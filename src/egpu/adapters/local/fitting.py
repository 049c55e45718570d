"""Choose the cards of this machine for a slice; pure.

Slices that share the room of a card (`RoomTerms`) together take what is always theirs, and the largest rest. This
machine's own memory must have room for all of them.
"""

from collections.abc import Sequence
from typing import Final

from egpu.adapters.cards.nvml import CardReading
from egpu.adapters.local.holders import WHOLE_CORE, Holder, SliceRequest
from egpu_base.errors import DoesNotFit, InvalidInput

MOST_TOLD: Final = 2
"""The most cards, and holders of a card, that a refusal names: it is one line."""


def candidates(cards: Sequence[CardReading], request: SliceRequest) -> list[CardReading]:
    """Return the cards that could ever have room. Raises InvalidInput for too few."""
    named = [card for card in cards if request.gpu in (None, card.index)]
    if not named:
        known = ", ".join(str(card.index) for card in cards) or "none"
        raise InvalidInput("--gpu", f"this machine has no GPU {request.gpu}; it has {known}")
    if request.cards > len(named):
        raise InvalidInput("--gpus", f"this machine has {len(named)} of the {request.cards} cards")
    large = [card for card in named if card.memory_mib >= request.memory_mib]
    if request.cards > len(large):
        smaller = max((card for card in named if card not in large), key=lambda card: card.memory_mib)
        raise InvalidInput(
            "--memory",
            f"{request.memory_mib} MiB is more than a card has: GPU {smaller.index} ({smaller.model}) has "
            f"{smaller.memory_mib} MiB",
        )
    return large


def _free(card: CardReading, holders: Sequence[Holder]) -> tuple[int, int]:
    """Return the free percent and MiB of a card."""
    mine = [holder for holder in holders if card.uuid in holder.uuids]
    own_mib = sum(holder.own_mib for holder in mine)
    return WHOLE_CORE - sum(holder.core for holder in mine), card.memory_mib - own_mib - _shared_mib(mine)


def _shared_mib(holders: Sequence[Holder]) -> int:
    """Return the room that the holders of a card share: as much as the largest of them needs."""
    return max((holder.memory_mib - holder.own_mib for holder in holders), default=0)


def _needs_mib(card: CardReading, request: SliceRequest, holders: Sequence[Holder]) -> int:
    """Return how much of the card's free memory the slice takes: its own, and what others do not share yet."""
    shared_mib = _shared_mib([holder for holder in holders if card.uuid in holder.uuids])
    return request.own_mib + max(0, request.memory_mib - request.own_mib - shared_mib)


def check_host_memory(request: SliceRequest, holders: Sequence[Holder]) -> None:
    """Check that this machine's memory has room for all slices that may be parked for others. Raises DoesNotFit."""
    if not request.resident_percent:
        return
    used_mib = sum(holder.memory_mib for holder in holders if holder.room is not None)
    if used_mib + request.memory_mib > request.host_memory_mib:
        left_mib = max(0, request.host_memory_mib - used_mib)
        raise DoesNotFit(
            f"the slice may be parked and then needs {request.memory_mib} MiB of this machine's memory; {left_mib} of "
            f"{request.host_memory_mib} MiB are left (--parking-memory)"
        )


def fullest_with_room(
    cards: Sequence[CardReading], request: SliceRequest, holders: Sequence[Holder]
) -> list[CardReading]:
    """Return the chosen cards by index, or as many as there are."""
    roomy: list[tuple[tuple[int, int, int], CardReading]] = []
    for card in cards:
        core, memory_mib = _free(card, holders)
        if card.healthy and core >= request.core and memory_mib >= _needs_mib(card, request, holders):
            roomy.append(((core, memory_mib, card.index), card))
    chosen = [card for _, card in sorted(roomy, key=lambda one: one[0])[: request.cards]]
    return sorted(chosen, key=lambda card: card.index)


def refusal(cards: Sequence[CardReading], request: SliceRequest, holders: Sequence[Holder]) -> str:
    """Return one line: the request, and the cards that are closest to it with some of their holders."""
    asked = f"{request.core} % and {request.memory_mib} MiB"
    asked += f" ({request.resident_percent} % of it resident)" if request.resident_percent else ""
    found = "no card has" if request.cards == 1 else f"fewer than {request.cards} cards have"
    closest = sorted(cards, key=lambda card: (not card.healthy, *(-free for free in _free(card, holders))))
    told = [_card_state(card, holders) for card in closest[:MOST_TOLD]]
    return f"{found} {asked} free now: {'; '.join(told)}{_more(len(closest))}"


def _card_state(card: CardReading, holders: Sequence[Holder]) -> str:
    if not card.healthy:
        return f"GPU {card.index} is not available: {card.reason}"
    core, memory_mib = _free(card, holders)
    mine = [str(holder) for holder in holders if card.uuid in holder.uuids]
    held = f", held by {', '.join(mine[:MOST_TOLD])}{_more(len(mine))}" if mine else ""
    return f"GPU {card.index} has {core} % and {memory_mib} of {card.memory_mib} MiB free{held}"


def _more(count: int) -> str:
    return f" and {count - MOST_TOLD} more" if count > MOST_TOLD else ""
