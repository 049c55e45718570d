"""Slices that do not leave their card while others wait for the room (`egpu.core.arbiter.Due`).

A program may hide from the interposer, or have memory that cannot leave. Its time is counted, its owner is told, and
after the patience of its class its programs are ended.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from egpu.core.arbiter import LEAVE_SECONDS, Tenant, Turn

OVERSTAY_SECONDS: Final = 2 * LEAVE_SECONDS
"""A slice that is due for longer overstays: most leave within some seconds."""
AGAIN_SECONDS: Final = 10.0
"""The memory of ended programs is free by then. Until then, no other slice of the card is ended, either."""


@dataclass(frozen=True)
class Overstay:
    """A slice that keeps `beyond_bytes` more than its own room on a card, while another slice waits.

    `seconds`: for how long. `patience_seconds`: the time after which its programs are ended; 0: never. `is_over`: they
    are to be ended now."""

    key: Hashable
    uuid: str
    for_slice: Hashable
    beyond_bytes: int
    seconds: float
    patience_seconds: float = 0.0
    is_over: bool = False


class Overstays:
    """Counts overstays. `told` is called with each one at each look."""

    def __init__(self, told: Callable[[Overstay], None]) -> None:
        self._told = told
        self._ended_at: dict[str, float] = {}
        self.seconds: dict[Hashable, float] = {}
        """By slice, all time of its overstays."""

    def see(
        self,
        uuid: str,
        tenants: Sequence[Tenant],
        turns: Mapping[Hashable, Turn],
        patience: Mapping[Hashable, float],
        *,
        now: float,
        elapsed: float,
    ) -> None:
        """Look at one card. `patience`: of its slices; `elapsed`: since the last look."""
        found: list[Overstay] = []
        for one in tenants:
            due = turns[one.name].due
            if due is None or now - due.since < OVERSTAY_SECONDS:
                continue
            self.seconds[one.name] = self.seconds.get(one.name, 0.0) + elapsed
            beyond, limit = one.on_card_bytes - one.floor_bytes, patience.get(one.name, 0.0)
            found.append(Overstay(one.name, uuid, due.for_slice, beyond, now - due.since, limit))
        over = max((one for one in found if 0 < one.patience_seconds <= one.seconds), key=_length, default=None)
        if now - self._ended_at.get(uuid, -AGAIN_SECONDS) < AGAIN_SECONDS:
            over = None
        if over is not None:
            self._ended_at[uuid] = now
        for one in found:
            self._told(replace(one, is_over=one is over))

    def forget(self, cards: Mapping[str, object], slices: set[Hashable]) -> None:
        """Keep these cards and slices alone."""
        self._ended_at = {uuid: at for uuid, at in self._ended_at.items() if uuid in cards}
        self.seconds = {key: seconds for key, seconds in self.seconds.items() if key in slices}


def _length(one: Overstay) -> float:
    return one.seconds
