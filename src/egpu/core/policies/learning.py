"""The job mix, learned from arrivals: bounded, forgetting, and small enough to store in an object.

Prices follow the mix at fixed counts of arrivals (from `FIRST_PRICES_AT` on, each half as many again), so that equal
sequences of pods give equal prices in the extender and in simulations.
"""

from typing import Final

import msgspec

from egpu.core.policies.shapes import Mix, Shape
from egpu_base.errors import CorruptData

MAX_SHAPES: Final = 2048
"""Shapes remembered; beyond, the rarest tenth is forgotten."""
MEMORY_PODS: Final = 50_000
"""Pods after which all weights are halved, so that the mix follows the present."""
FIRST_PRICES_AT: Final = 10
GROWTH: Final = 1.5
MOST_BETWEEN_PRICES: Final = 5_000
SAVED_SHAPES: Final = 512
"""Shapes stored across restarts: the most popular, some 40 kB at most."""


class _Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    cpu_milli: int
    ram_mib: int
    cards: int
    core_milli: int
    card_memory_mib: int
    models: tuple[str, ...]
    weight: float


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    arrivals: int
    shapes: list[_Saved]


class LearnedMix:
    """Counts arrivals per shape, and decides when new prices are due."""

    def __init__(self) -> None:
        self._weights: dict[Shape, float] = {}
        self._total = 0.0
        self.arrivals = 0
        self._next = FIRST_PRICES_AT

    def see(self, shape: Shape) -> bool:
        """Count a pod. Return True when prices should be computed again from `mix()`."""
        self._weights[shape] = self._weights.get(shape, 0.0) + 1
        self._total += 1
        self.arrivals += 1
        if len(self._weights) > MAX_SHAPES:
            self._forget_rare()
        if self._total > MEMORY_PODS:
            self._weights = {known: weight / 2 for known, weight in self._weights.items()}
            self._total /= 2
        if self.arrivals < self._next:
            return False
        self._schedule()
        return True

    @property
    def enough(self) -> bool:
        """True if enough pods were seen for prices."""
        return self.arrivals >= FIRST_PRICES_AT

    def mix(self) -> Mix:
        """Return a copy of the present mix."""
        return Mix(dict(self._weights))

    def dump(self) -> str:
        """Return the mix as JSON, for `load`."""
        popular = sorted(self._weights.items(), key=lambda item: -item[1])[:SAVED_SHAPES]
        saved = [
            _Saved(s.cpu_milli, s.ram_mib, s.cards, s.core_milli, s.card_memory_mib, s.models, round(weight, 3))
            for s, weight in popular
        ]
        return msgspec.json.encode(_Document(1, self.arrivals, saved)).decode()

    @classmethod
    def load(cls, text: str) -> "LearnedMix":
        """Read the output of `dump`. Raises CorruptData for anything else."""
        try:
            document = msgspec.json.decode(text, type=_Document)
            weights = {
                Shape(s.cpu_milli, s.ram_mib, s.cards, s.core_milli, s.card_memory_mib, s.models): s.weight
                for s in document.shapes
                if s.weight > 0
            }
        except (msgspec.DecodeError, ValueError) as error:
            raise CorruptData(f"the stored job mix cannot be read ({error}); delete it to start again") from error
        if document.version != 1:
            raise CorruptData(f"the stored job mix has version {document.version}; this program supports 1")
        learned = cls()
        learned._weights, learned._total, learned.arrivals = weights, sum(weights.values()), document.arrivals
        while learned._next <= learned.arrivals:
            learned._schedule()
        return learned

    def _schedule(self) -> None:
        self._next += max(1, min(int(self._next * (GROWTH - 1)), MOST_BETWEEN_PRICES))

    def _forget_rare(self) -> None:
        kept = sorted(self._weights.items(), key=lambda item: -item[1])[: MAX_SHAPES * 9 // 10]
        self._weights = dict(kept)
        self._total = sum(self._weights.values())
