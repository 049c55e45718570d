"""The price policy with the job mix learned on the way, as an extender learns it (`egpu.core.packer`)."""

from collections.abc import Callable

from egpu.core.packing.fleet import Fleet
from egpu.core.packing.learning import LearnedMix
from egpu.core.packing.price import Price, compute_prices
from egpu.core.packing.shapes import Mix, Shape

Compute = Callable[[Mix], None]
"""Starts computing prices for a mix; whoever asked is given them later."""


class LearningPrice(Price):
    """`see` every pod once, before its first decision; prices are computed within `see`."""

    def __init__(self, fleet: Fleet) -> None:
        self.learned = LearnedMix()
        self._fleet = fleet
        super().__init__(fleet, compute_prices(self.learned.mix(), fleet))

    def see(self, shape: Shape) -> None:
        """Count an arrival that asks for cards: an extender is asked about no others."""
        if shape.cards and self.learned.see(shape):
            self.swap(self._fleet, compute_prices(self.learned.mix(), self._fleet))
