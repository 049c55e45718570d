"""Allocation and use of each card: the last half hour, in memory, in whole percent."""

from collections.abc import Generator
from typing import Final

import numpy as np
import numpy.typing as npt

from egpu.core.placement.card_usage import CardKey
from egpu.core.view import CardView, ClusterView, NodeView
from egpu_base.api.quantities import MIB_BYTES

SAMPLE_SECONDS: Final = 5.0
SAMPLES: Final = 360
"""Half an hour; with 1,440 bytes per card, 40,000 cards take some 60 MB."""
STEP: Final = 100
"""Nodes that are sampled in one step."""
UNKNOWN: Final = 255
"""An unknown use; percentages end at MOST."""
MOST: Final = 200
SERIES: Final = ("core given", "core used", "memory given", "memory used")


class _Rings:
    """Samples of one node's cards: `values` of shape (samples, cards, series), and each card's column with its first
    sample."""

    def __init__(self, node: NodeView, count: int, before: "_Rings | None") -> None:
        """`before`: the samples until now, `count` in all."""
        self.node = node
        self.values = np.full((SAMPLES, len(node.cards), len(SERIES)), UNKNOWN, np.uint8)
        self.places: dict[str, tuple[int, int]] = {}
        for column, card in enumerate(node.cards):
            known = before.places.get(card.card.uuid) if before is not None else None
            if before is not None and known is not None:
                self.values[:, column] = before.values[:, known[0]]
            self.places[card.card.uuid] = column, count if known is None else known[1]
        self.latest = _latest(node)

    def sample(self, node: NodeView, place: int) -> None:
        """Add a sample of the same cards."""
        if node is not self.node:
            self.node, self.latest = node, _latest(node)
        self.values[place] = self.latest


class History:
    """Samples at even times. A card that is gone is forgotten."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Rings] = {}
        self._times = np.zeros(SAMPLES)
        self._count = 0

    def sample(self, view: ClusterView, seconds: float) -> Generator[None]:
        """Store a sample of `view`, STEP nodes at a time, with other work in between. `seconds` is the time of day, for
        display."""
        place, known = self._count % SAMPLES, self._nodes
        kept: dict[str, _Rings] = {}
        for number, node in enumerate(view.nodes):
            rings = known.get(node.name)
            if rings is None or (rings.node is not node and _uuids(rings.node) != _uuids(node)):
                rings = _Rings(node, self._count, rings)
            rings.sample(node, place)
            kept[node.name] = rings
            if number % STEP == STEP - 1:
                yield
        self._times[place] = seconds
        self._nodes = kept
        self._count += 1

    def of(self, key: CardKey) -> tuple[list[float], list[list[float | None]]]:
        """Return times of day in seconds, oldest first, and for each of SERIES the percentages, None if unknown."""
        rings = self._nodes.get(key.node)
        column, first = rings.places.get(key.uuid, (0, self._count)) if rings is not None else (0, self._count)
        if rings is None or first == self._count:
            return [], [[] for _ in SERIES]
        order = np.arange(max(first, self._count - SAMPLES), self._count) % SAMPLES
        columns: list[list[int]] = rings.values[order, column].T.tolist()
        return self._times[order].tolist(), [
            [None if value == UNKNOWN else float(value) for value in column] for column in columns
        ]


def _uuids(node: NodeView) -> list[str]:
    return [card.card.uuid for card in node.cards]


def _latest(node: NodeView) -> npt.NDArray[np.uint8]:
    """Return the newest values, shape (cards, series)."""
    figures = [_percentages(card) for card in node.cards]
    return np.array(figures, np.uint8).reshape(len(figures), len(SERIES))


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
