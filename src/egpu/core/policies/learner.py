"""The price policy with the job mix learned on the way, as an extender learns it (`egpu.core.placement.ranking`)."""

from collections.abc import Callable

from egpu.core.policies.fleet import Fleet
from egpu.core.policies.learning import LearnedMix
from egpu.core.policies.price import Price, compute_prices
from egpu.core.policies.shapes import Mix, Shape

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
