"""Preferences among places that fit: one small class each, two functions (nodes, cards).

Both see arrays, so a policy costs the same number of numpy calls for one node and for thousands.
"""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from egpu.core.arrays import BoolArray, FloatArray, IntArray
from egpu.core.policies.registry import DEFAULT_POLICY, FOR_COMPARISON
from egpu.core.policies.registry import NAMES as PACKING_NAMES
from egpu.core.provisioners import Needs
from egpu.errors import InvalidInput


@dataclass(frozen=True)
class CardsView:
    """What a policy may look at. `usable` is False for cells without a healthy card."""

    usable: BoolArray
    memory_mib: IntArray
    core_free: IntArray
    memory_free: IntArray

    def used(self, needs: Needs | None = None) -> FloatArray:
        """Share of each card that is given out, 0..1, the mean of compute and memory; with `needs` taken as well."""
        core, memory = self.core_free, self.memory_free
        if needs is not None:
            core, memory = core - needs.core, memory - needs.memory_mib
        left = (core / 100 + memory / np.maximum(self.memory_mib, 1)) / 2
        return np.clip(1 - left, 0, 1)


class Policy(Protocol):
    """`node_scores` looks at the cards as they would be with the pod placed, and answers 0..1 per row; `card_scores` at
    the cards before, and answers any number per cell. More is better; ties go to the lowest card index."""

    name: str

    def node_scores(self, after: CardsView) -> FloatArray: ...

    def card_scores(self, before: CardsView, needs: Needs) -> FloatArray: ...


def _mean_used(after: CardsView) -> FloatArray:
    count = np.maximum(after.usable.sum(axis=1), 1)
    return np.where(after.usable, after.used(), 0).sum(axis=1) / count


class Binpack:
    """Fill what is already in use: keeps whole cards and whole nodes free for those who need them."""

    name: str = "binpack"

    def node_scores(self, after: CardsView) -> FloatArray:
        return _mean_used(after)

    def card_scores(self, before: CardsView, needs: Needs) -> FloatArray:
        return before.used(needs)


class Spread:
    """Use what is least in use: the most room for bursts, and the least lost with one card or node."""

    name: str = "spread"

    def node_scores(self, after: CardsView) -> FloatArray:
        return 1 - _mean_used(after)

    def card_scores(self, before: CardsView, needs: Needs) -> FloatArray:
        return -before.used(needs)


class Packed:
    """A policy of `egpu.core.policies`, by its name: `egpu.core.placement.ranking` scores for it, with all it knows of
    the cluster.

    Where that has no view (a claim by itself, CPU short by what we know), it is binpack.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def node_scores(self, after: CardsView) -> FloatArray:
        return _mean_used(after)

    def card_scores(self, before: CardsView, needs: Needs) -> FloatArray:
        return before.used(needs)


class _Preferring(Binpack):
    """Binpack, but these columns first."""

    def __init__(self, columns: tuple[int, ...]) -> None:
        self._columns = columns

    def card_scores(self, before: CardsView, needs: Needs) -> FloatArray:
        scores = super().card_scores(before, needs)
        scores[:, list(self._columns)] += 2
        return scores


def preferring(columns: tuple[int, ...]) -> Policy:
    """A card policy for one node that takes `columns` first."""
    return _Preferring(columns)


_OWN: Final[dict[str, Policy]] = {entry.name: entry for entry in (Binpack(), Spread())}
_POLICIES: Final[dict[str, Policy]] = _OWN | {
    name: Packed(name) for name in PACKING_NAMES if name not in _OWN and name not in FOR_COMPARISON
}
POLICY_NAMES: Final = tuple(_POLICIES)


def policy(name: str) -> Policy:
    """The policy called `name`; `default` is what an extender does that nobody configured. Raises InvalidInput listing
    the known ones."""
    if name == "default":
        name = DEFAULT_POLICY
    if name not in _POLICIES:
        raise InvalidInput("policy", f"no policy is called {name!r}; known are {', '.join(POLICY_NAMES)}")
    return _POLICIES[name]


@dataclass(frozen=True)
class Policies:
    """Which policy chooses the node, and which the card on it."""

    node: Policy
    card: Policy

    @classmethod
    def named(cls, node: str = "binpack", card: str = "binpack") -> "Policies":
        """Raises InvalidInput for a name that is not known."""
        return cls(policy(node), policy(card))
