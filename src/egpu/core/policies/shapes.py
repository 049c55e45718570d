"""The items and bins of packing: pod shapes and machine shapes, as plain numbers.

Pods of one shape are interchangeable to every policy, which makes score rows per shape (`placer`) possible.
"""

from dataclasses import dataclass, field
from typing import Final

from egpu_base.errors import InvalidInput

WHOLE_CARD: Final = 1000
"""Compute of one card, in thousandths."""


@dataclass(frozen=True)
class Shape:
    """The request of one pod. `core_milli` and `card_memory_mib` are per card; `models` empty means any model.

    With `resident_mib`, only so much of the card's memory is its own. It shares the room for the rest with others, and
    uses it for `busy_percent` of its time."""

    cpu_milli: int = 0
    ram_mib: int = 0
    cards: int = 0
    core_milli: int = 0
    card_memory_mib: int = 0
    models: tuple[str, ...] = ()
    resident_mib: int = 0
    busy_percent: int = 0
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        """Check the amounts. Raises InvalidInput for a request that no pod can make."""
        if min(self.cpu_milli, self.ram_mib, self.cards, self.core_milli, self.card_memory_mib) < 0:
            raise InvalidInput("shape", f"amounts cannot be negative: {self}")
        if self.core_milli > WHOLE_CARD:
            raise InvalidInput("shape", f"{self.core_milli} thousandths of one card asked: ask for more cards instead")
        if self.cards and not (self.core_milli or self.card_memory_mib):
            raise InvalidInput("shape", "asks for cards, but for neither compute nor memory")
        if not 0 <= self.resident_mib <= self.card_memory_mib:
            raise InvalidInput("shape", f"{self.resident_mib} of {self.card_memory_mib} MiB cannot be resident")
        amounts = (self.cpu_milli, self.ram_mib, self.cards, self.core_milli, self.card_memory_mib, self.models)
        object.__setattr__(self, "_hash", hash((*amounts, self.resident_mib, self.busy_percent)))

    def __hash__(self) -> int:
        """Return the cached hash: shapes are looked up several times per decision."""
        return self._hash

    @property
    def whole(self) -> bool:
        """True if it takes untouched cards whole, compute and memory."""
        return self.core_milli == WHOLE_CARD

    @property
    def shared_mib(self) -> int:
        """The room that it shares with others on its card; 0: none."""
        return self.card_memory_mib - self.resident_mib if self.resident_mib else 0

    @property
    def gpu_milli(self) -> int:
        """Compute over all its cards."""
        return self.cards * self.core_milli


@dataclass(frozen=True)
class Machine:
    """The capacity of one empty node. A card's compute is always 1000; its memory may be unknown (0)."""

    name: str
    cpu_milli: int
    ram_mib: int
    cards: int
    model: str = ""
    card_memory_mib: int = 0


@dataclass(frozen=True)
class Mix:
    """The frequency of each shape: weights of any scale, all positive."""

    weights: dict[Shape, float] = field(default_factory=dict[Shape, float])

    @property
    def total(self) -> float:
        return sum(self.weights.values())

    def is_like(self, other: "Mix") -> bool:
        """Return whether both have the same shapes with the same shares: then prices are equal, too."""
        return self._shares() == other._shares()

    def _shares(self) -> dict[Shape, float]:
        total = self.total
        return {shape: weight / total for shape, weight in self.weights.items()}

    @classmethod
    def of(cls, shapes: "list[Shape]") -> "Mix":
        """Count the pods of a list."""
        counts: dict[Shape, float] = {}
        for shape in shapes:
            counts[shape] = counts.get(shape, 0) + 1
        return cls(counts)

    def typical(self, share: float = 0.95) -> "list[tuple[Shape, float]]":
        """Return the most popular shapes that together make `share` of the pods, with probabilities that sum to 1."""
        ranked = sorted(self.weights.items(), key=lambda item: -item[1])
        wanted, reached, kept = share * self.total, 0.0, list[tuple[Shape, float]]()
        for shape, weight in ranked:
            if reached >= wanted:
                break
            kept.append((shape, weight))
            reached += weight
        return [(shape, weight / reached) for shape, weight in kept]
