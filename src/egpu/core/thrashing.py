"""Tell whether a card thrashes: slices that share its room, and are not idle, wait for each other most of the time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from egpu.api import names
from egpu_base.api.kubernetes import Node

WINDOW_SECONDS: Final = 300.0
"""Longer than the end of a computation, or its begin, shorter than an administrator's patience."""
BEGINS: Final = 0.5
ENDS: Final = 0.25
"""Apart, so that a card that is contended for a third of the time does not come and go."""


@dataclass(frozen=True)
class Contention:
    """The part of the time for which a card was contended, of late."""

    ratio: float = 0.0
    thrashes: bool = False

    def after(self, seconds: float, *, contended: bool) -> Contention:
        """Return it after these seconds."""
        kept = math.exp(-seconds / WINDOW_SECONDS)
        ratio = self.ratio * kept + (1 - kept) * contended
        return Contention(ratio, ratio > (ENDS if self.thrashes else BEGINS))


def published(uuids: Iterable[str]) -> str | None:
    """Return the value of a node's annotation for these cards; None: it has none."""
    return ",".join(sorted(uuids)) or None


def thrashing_cards(node: Node) -> frozenset[str]:
    """Return the cards of a node that thrash, as its agent says."""
    return frozenset(filter(None, node.annotations.get(names.THRASHING_CARDS, "").split(",")))
