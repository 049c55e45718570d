"""What each card gave and what was used of it: the last half hour, in memory, in whole percent."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from egpu.api.quantities import MIB_BYTES
from egpu.core.placement.usage import CardKey
from egpu.core.view import CardView, ClusterView

SAMPLE_SECONDS: Final = 5.0
SAMPLES: Final = 360
"""Half an hour; with 1,440 bytes a card, 40,000 cards take some 60 MB."""
UNKNOWN: Final = 255
"""Where nobody said what is used; percentages end at MOST."""
MOST: Final = 200
SERIES: Final = ("core given", "core used", "memory given", "memory used")


@dataclass
class _Ring:
    values: npt.NDArray[np.uint8]
    first: int
    """The number of the sample with which this card began."""


class History:
    """`sample` at even times; a card that is gone is forgotten."""

    def __init__(self) -> None:
        self._rings: dict[CardKey, _Ring] = {}
        self._times = np.zeros(SAMPLES)
        self._count = 0

    def sample(self, view: ClusterView, seconds: float) -> None:
        """Keep what `view` shows; `seconds` is the time of day, to be shown."""
        place = self._count % SAMPLES
        self._times[place] = seconds
        known = self._rings
        self._rings = {}
        for card in view.cards():
            key = CardKey(card.node, card.card.uuid)
            ring = known.get(key) or _Ring(np.full((SAMPLES, len(SERIES)), UNKNOWN, np.uint8), self._count)
            ring.values[place] = _percentages(card)
            self._rings[key] = ring
        self._count += 1

    def of(self, key: CardKey) -> tuple[list[float], list[list[float | None]]]:
        """Times of day in seconds, oldest first, and for each of SERIES the percentages, None where nobody said."""
        ring = self._rings.get(key)
        if ring is None:
            return [], [[] for _ in SERIES]
        order = np.arange(max(ring.first, self._count - SAMPLES), self._count) % SAMPLES
        columns: list[list[int]] = ring.values[order].T.tolist()
        return self._times[order].tolist(), [
            [None if value == UNKNOWN else float(value) for value in column] for column in columns
        ]


def _percentages(card: CardView) -> tuple[int, int, int, int]:
    total = card.card.memory_mib
    used, core = card.memory_used_bytes, card.core_used_ratio
    return (
        _whole(card.core_given),
        UNKNOWN if core is None else _whole(100 * core),
        _whole(100 * card.memory_given_mib / total if total else 0),
        UNKNOWN if used is None or not total else _whole(100 * used / (total * MIB_BYTES)),
    )


def _whole(percent: float) -> int:
    return max(0, min(MOST, round(percent)))
