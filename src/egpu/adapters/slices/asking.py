"""Ask slices to park or to wake, and set their room on the card.

Both raise the errors of `egpu.adapters.slices.pages.amend_parking`.
"""

from dataclasses import replace
from pathlib import Path

from egpu.adapters.slices.pages import Parking, amend_parking


def ask_to_park(path: Path, *, park: bool, least: int = 0) -> int:
    """Ask the processes of a slice to park, or to wake; returns the number that they answer to, at least `least`."""
    return amend_parking(path, lambda now: replace(_asked(now, park=park, least=least), hold_ns=0)).request


def set_room(path: Path, *, room_bytes: int, until_ns: int, park_hold_ns: int | None = None) -> int:
    """Say how much of a slice may be on its card, and until when; returns its last request to park or to wake.

    `park_hold_ns`: ask the slice to park as well, for which calls may be held for so long (0: only if it is idle).
    """

    def change(now: Parking) -> Parking:
        terms = replace(now, room_bytes=room_bytes, room_until_ns=until_ns)
        return terms if park_hold_ns is None else replace(_asked(terms, park=True), hold_ns=park_hold_ns)

    return amend_parking(path, change).request


def _asked(parking: Parking, *, park: bool, least: int = 0) -> Parking:
    request = max(parking.request + 1, least)
    return replace(parking, request=request + (request % 2 != park))
