"""The policy of this project: a place costs what the rest of the job mix could have made of it.

A pod's cost on a node, in thousandths of a card, is the sum of

- the worth that its share destroys on the card (`patterns` while a cluster fills, `chances` where pods depart);
- the growth of GPU that the node's CPU and memory can no longer serve (`stranding`);
- the demand of other pods for just this card model;
- the charge for using up one of the last hosts of pods that need several untouched cards (`reserve`);
- a little for touching an untouched card, more if many of the node's are, and a little for GPU left on the node, so
  that nodes in use fill up and others drain.

No pod is refused for a price. One setting serves every mix and load. The rest adapts: to the mix (tables), to what is
free (how scarce hosts are), to what runs out first (`host_scarcity`: GPU left on a node has no price where pods without
GPU use up the hosts) and to departures: while a cluster only fills, a remainder can wait for its match, and the match
counts; in a steady state it cannot.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from egpu.core.arrays import BoolArray, FloatArray, IntArray
from egpu.core.policies.base import Marks, Policy
from egpu.core.policies.fleet import FULL, GPU, LARGEST, Fleet
from egpu.core.policies.host_scarcity import HostScarcity
from egpu.core.policies.patterns import MEMORY_LEVELS, solver
from egpu.core.policies.prices import Prices, compute_prices, memory_levels
from egpu.core.policies.reserve import FINENESS, Reserve
from egpu.core.policies.shapes import WHOLE_CARD, Mix, Shape

LOSSES_LIMIT: Final = 1024
"""Shapes whose table of losses is cached."""
TURNS_ABOVE: Final = 0.10
TURNS_NOT_BELOW: Final = 0.02
"""Share of departures among the latest changes at which a cluster counts as turning over, and as filling again."""
_UNTOUCHED_LAST = 1e-4
"""Added to the cost of an untouched card, so that between equals one in use is taken."""


@dataclass(frozen=True)
class Weights:
    """The weights of the terms. Chosen on seeds that no reported number uses."""

    card: float
    cpu: float
    ram: float
    left: float
    untouched: float
    model: float = 1.0
    left_unpriced: float = 0.0
    """In place of `left` where hosts run out first. Below zero, pods go where most GPU is left: no host is used up
    while others have plenty, and the rest is in pieces that pods with GPU can use, and large pods without cannot."""


FILLING: Final = Weights(card=1.0, cpu=2.7, ram=0.8, left=0.05, untouched=50.0, left_unpriced=-0.4)
TURNING: Final = Weights(card=5.3, cpu=1.2, ram=0.5, left=0.12, untouched=20.0, left_unpriced=0.12)
RESERVE_SWINGS: Final = 3.0
RESERVE_WIDTH: Final = 0.5
RESERVE_WORTH: Final = 5.0


class Price(Policy):
    """The policy `price`. Prices can be replaced at any time (`use_prices`); decisions until then use the old ones."""

    prefers = "where the pod costs the other jobs least"
    priced = True

    def __init__(self, fleet: Fleet, prices: Prices) -> None:
        self.turning = False
        """True if pods depart, by the changes of the fleet."""
        self.use_prices(fleet, prices)

    @classmethod
    def check_installed(cls) -> None:
        solver()

    @classmethod
    def of(cls, mix: Mix, fleet: Fleet) -> Self:
        """Return a policy with prices computed on the spot. Raises MissingExtra."""
        return cls(fleet, compute_prices(mix, fleet))

    def use_prices(self, fleet: Fleet, prices: Prices) -> None:
        self._prices = prices
        self._binding = HostScarcity(prices.mix, fleet)
        self._reserve = Reserve(prices.mix, fleet, swings=RESERVE_SWINGS, width=RESERVE_WIDTH, worth=RESERVE_WORTH)
        classes = {total: code for code, total in enumerate(prices.memory_classes)}
        self._class: IntArray = np.array([classes.get(int(t), 0) for t in fleet.card_memory_total], dtype=np.int64)
        self._widest = fleet.width
        self._width = max(worth.levels for worth in prices.filling) + 1
        self._memory_scale = MEMORY_LEVELS / np.maximum(fleet.card_memory_total, 1)
        self._use(TURNING if self.turning else FILLING)

    def _use(self, weights: Weights) -> None:
        """Use these weights from now on; all earlier scores are invalid."""
        self._weights = weights
        self._worth = self._prices.turning if self.turning else self._prices.filling
        self._losses: OrderedDict[tuple[int, int], FloatArray] = OrderedDict()
        self._stranded = self._prices.stranding.weighted(weights.cpu, weights.ram)
        most = self._widest
        self._left = weights.left + (weights.left_unpriced - weights.left) * self._binding.share
        self._touching = weights.untouched / most**2 * np.arange(most + 1, dtype=np.float64) ** 2
        charge = self._prices.model_charge * weights.model
        self._model_charge = charge if charge.any() else None
        self.generation += 1

    def attend(self, fleet: Fleet) -> None:
        if fleet.departures > TURNS_ABOVE and not self.turning:
            self.turning = True
            self._use(TURNING)
        elif fleet.departures < TURNS_NOT_BELOW and self.turning:
            self.turning = False
            self._use(FILLING)
        if self._binding.attend(fleet) and not self.turning:
            self._use(self._weights)
        self._reserve.attend(fleet)

    def rank_nodes(self, fleet: Fleet, shape: Shape, rows: IntArray) -> FloatArray:
        return self.rank_and_mark(fleet, shape, rows, fleet.state.take(rows, axis=1))[0]

    def rank_and_mark(self, fleet: Fleet, shape: Shape, rows: IntArray, state: IntArray) -> tuple[FloatArray, Marks]:
        cost, host = self._stranded.growth(state, shape)
        cost += self._left * state[GPU]
        untouched: IntArray = state[FULL]
        if shape.cards == 1 and not shape.whole:
            best, touches = self._cheapest(fleet, shape, rows, state)
            cost += best
            cost += touches * self._touching.take(untouched)
            untouched = untouched - touches
        elif shape.cards:
            cost += self._touching.take(untouched)
            untouched = untouched - shape.cards
        if self._model_charge is not None and shape.cards:
            cost += self._model_charge.take(fleet.model.take(rows)) * shape.gpu_milli
        cost *= -FINENESS
        return np.rint(cost, out=cost), self._reserve.marks(rows, host, untouched)

    def _cheapest(self, fleet: Fleet, shape: Shape, rows: IntArray, state: IntArray) -> tuple[FloatArray, BoolArray]:
        """Return the least worth that the share destroys on a card of each row, and whether that card is untouched."""
        lanes = fleet.lanes if rows is fleet.all_rows else fleet.lanes.take(rows, axis=1)
        losses = self._card_losses(fleet, shape, rows, lanes)
        best = np.minimum.reduce(losses)
        if self._width > 1 or shape.card_memory_mib:
            return best, ((losses == best) & (lanes == WHOLE_CARD)).any(axis=0)
        touches = best == self._loss_table(shape, 0)[WHOLE_CARD]
        touches &= state[LARGEST] == WHOLE_CARD
        return best, touches

    def charges(self) -> FloatArray | None:
        return self._reserve.charges()

    def rank_cards(self, fleet: Fleet, shape: Shape, row: int) -> tuple[int, ...]:
        if shape.cards != 1 or shape.whole:
            return tuple(fleet.eligible_cards(shape, row)[: shape.cards])
        lanes = fleet.lanes[:, row : row + 1]
        losses: list[float] = self._card_losses(fleet, shape, fleet.all_rows[row : row + 1], lanes)[:, 0].tolist()
        core: list[int] = fleet.core[row].tolist()
        return (min(range(len(core)), key=lambda column: (losses[column], core[column], column)),)

    def _card_losses(self, fleet: Fleet, shape: Shape, rows: IntArray, lanes: IntArray) -> FloatArray:
        """Return the worth destroyed per card, inf if the share does not fit, shape (cards, rows)."""
        if self._width == 1:
            losses = self._loss_table(shape, 0).take(lanes)
            if not shape.card_memory_mib:
                return losses
            # The pod asks for memory, but the prices do not include memory yet.
            return np.where(fleet.memory_room(shape, rows) >= shape.card_memory_mib, losses, np.inf)
        memory = fleet.memory_room(shape, rows)
        levels = (memory * self._memory_scale.take(rows) + 1e-9).astype(np.int64)
        at = lanes * self._width + levels
        # Levels are rounded, so compare the amounts themselves.
        fitting = (lanes >= shape.core_milli) & (memory >= shape.card_memory_mib)
        return np.where(fitting, self._known_losses(shape, rows, at), np.inf)

    def _known_losses(self, shape: Shape, rows: IntArray, at: IntArray) -> FloatArray:
        """Return the tables' values at these places, shape (cards, rows); a whole card where it cannot fit."""
        classes = self._class.take(rows)
        first = int(classes[0])
        if (classes == first).all():
            losses = self._loss_table(shape, first).take(at)
        else:
            losses = np.empty(at.shape)
            for code in np.unique(classes).tolist():
                own = classes == code
                losses[:, own] = self._loss_table(shape, code).take(at[:, own])
        losses[np.isinf(losses)] = WHOLE_CARD
        return losses

    def _loss_table(self, shape: Shape, code: int) -> FloatArray:
        key = (shape.core_milli, memory_levels(shape.card_memory_mib, self._prices.memory_classes[code]) + (code << 8))
        table = self._losses.get(key)
        if table is None:
            table = self._losses[key] = self._tabulate(shape, code)
            if len(self._losses) > LOSSES_LIMIT:
                self._losses.popitem(last=False)
        return table

    def _tabulate(self, shape: Shape, code: int) -> FloatArray:
        worth = self._worth[code].table
        if worth.shape[1] < self._width:  # cards of unknown memory beside others
            worth = np.repeat(worth[:, :1], self._width, axis=1)
        core, memory = shape.core_milli, memory_levels(shape.card_memory_mib, self._prices.memory_classes[code])
        table = np.full(worth.shape, np.inf)
        if memory < self._width:
            table[core:, memory:] = worth[core:, memory:] - worth[: WHOLE_CARD + 1 - core, : self._width - memory]
        table *= WHOLE_CARD * self._weights.card
        table[WHOLE_CARD, -1] += _UNTOUCHED_LAST
        return table.reshape(-1)


class KnownPrice(Price):
    """Uses prices of a mix that is known beforehand: the best that learning it could reach."""

    priced = False
