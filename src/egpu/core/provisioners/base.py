"""What a technology must answer: what a demand needs of each card, and how its slices are kept apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from egpu.api.allocation import ContainerDemand
from egpu.core.arrays import BoolArray, FloatArray, IntArray

Isolation = Literal["whole-card", "environment", "interposer", "executor", "profile"]
"""How a container is kept inside its slice: it owns the card; it is told its share; the interposer counts; …"""


@dataclass(frozen=True)
class CardTotals:
    """What cards have when empty: `memory_mib` and per precision `tflops`, arrays of one shape."""

    memory_mib: IntArray
    tflops: Mapping[str, FloatArray]


@dataclass(frozen=True)
class Needs:
    """What one demand takes of each card, were it put there; `possible` is False where that card can never serve it."""

    core: IntArray
    memory_mib: IntArray
    possible: BoolArray


class Provisioner:
    """One technology. Subclasses set the names, and override what differs; `register` them in this package."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    available: ClassVar[bool] = True
    isolation: ClassVar[Isolation]
    oversubscribes: ClassVar[bool] = False
    """Whether programs may be let allocate more than their share, the rest in managed memory."""
    anywhere: ClassVar[bool] = False
    """Whether the cards may be another node's than the pod's."""

    def problem(self, demand: ContainerDemand) -> str | None:
        """Why this technology can never serve `demand`, whatever the cards; None when it can."""
        return None

    def needs(self, demand: ContainerDemand, cards: CardTotals) -> Needs:
        """What `demand` takes of each card of `cards` (same shape).

        Compute in percent of the card, from TFLOPS by the card's own figure, rounded up. Memory in MiB; where the
        demand names none, in proportion to the compute share, rounded down so that 100 shares of 1 % always fit.
        """
        memory = cards.memory_mib
        if demand.exclusive:
            return Needs(np.full_like(memory, 100), memory, memory >= max(demand.memory_mib, 1))
        if demand.tflops:
            figure = cards.tflops.get(demand.precision, np.zeros(memory.shape))
            known = figure > 0
            share = np.ceil(100 * demand.tflops / np.where(known, figure, 1))
            possible = known & (share <= 100)
            core = np.where(possible, share, 0).astype(np.int64)
        else:
            possible = np.ones(memory.shape, dtype=np.bool_)
            core = np.full_like(memory, demand.core)
        needed = np.full_like(memory, demand.memory_mib) if demand.memory_mib else np.maximum(memory * core // 100, 1)
        return Needs(core, needed, possible & (needed <= memory))
