"""The needs of demands, computed once per kind of card: a cluster has many cards, and few kinds."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np

from egpu.api.allocation import ContainerDemand
from egpu.core.attributes import CardKind
from egpu.core.provisioners import CardTotals, Needs, provisioner

DEMANDS_LIMIT: Final = 1024
"""Demands whose needs are cached; the least recently used is forgotten first."""


class KnownNeeds:
    """Cached needs for the kinds of one ledger. A kind keeps its number as long as this exists."""

    def __init__(self) -> None:
        self._known: OrderedDict[ContainerDemand, Needs] = OrderedDict()

    def of(self, demand: ContainerDemand, kinds: Sequence[CardKind]) -> Needs:
        """Return what the demand takes of a card of each kind, shape (kinds,)."""
        known = self._known.get(demand)
        if known is None or len(known.core) != len(kinds):
            known = self._known[demand] = provisioner(demand.provisioner).needs(demand, _totals(kinds))
            if len(self._known) > DEMANDS_LIMIT:
                self._known.popitem(last=False)
        self._known.move_to_end(demand)
        return known


def _totals(kinds: Sequence[CardKind]) -> CardTotals:
    figures = [dict(kind.tflops) for kind in kinds]
    by_precision = {
        precision: np.array([figure.get(precision, 0.0) for figure in figures])
        for precision in {precision for figure in figures for precision in figure}
    }
    memory = np.array([kind.memory_mib for kind in kinds], dtype=np.int64)
    return CardTotals(memory, by_precision, np.arange(len(kinds)), kinds)
