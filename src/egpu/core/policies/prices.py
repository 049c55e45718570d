"""The prices of the policy `price`, computed from a job mix: slow, so never on the scheduling path."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from egpu.core.arrays import FloatArray
from egpu.core.policies.chances import use_of_remainders
from egpu.core.policies.fleet import Fleet
from egpu.core.policies.patterns import MEMORY_LEVELS, Share, Worth, worth_of_remainders
from egpu.core.policies.shapes import WHOLE_CARD, Mix
from egpu.core.policies.stranding import Stranding

IMPATIENCE: Final = 0.15


@dataclass(frozen=True)
class Prices:
    """Everything computed from a mix, in the background; immutable, so that it can be swapped in at once."""

    mix: Mix
    memory_classes: tuple[int, ...]
    """Memory sizes of cards that have their own tables."""
    filling: tuple[Worth, ...]
    turning: tuple[Worth, ...]
    """Worth of remainders in both regimes, per memory class."""
    stranding: Stranding
    model_charge: FloatArray
    """Per model of the fleet, for pods that accept other models as well; shape (models,)."""

    def fits_fleet(self, fleet: Fleet) -> bool:
        """Return whether they were computed for cards like these: as many models, and no other memory sizes."""
        return len(self.model_charge) == len(fleet.models) and (
            self.memory_classes == (0,) or _sizes(fleet) <= set(self.memory_classes)
        )


def _sizes(fleet: Fleet) -> set[int]:
    """Return the memory sizes of its cards, the largest of each node."""
    sizes: list[int] = fleet.card_memory_total[fleet.count > 0].tolist()
    return set(sizes)


def memory_levels(amount: int, total: int) -> int:
    """Return the requested memory in levels of a card of `total` MiB, rounded up; above MEMORY_LEVELS: too much."""
    return -(-amount * MEMORY_LEVELS // total) if total else 0


def compute_prices(mix: Mix, fleet: Fleet) -> Prices:
    """Solve the LPs for a mix: tenths of a second to seconds, so never on the scheduling path. Reads only the parts of
    the fleet that placements do not change."""
    single = [(shape, weight) for shape, weight in mix.weights.items() if shape.cards == 1]
    with_memory = any(shape.card_memory_mib for shape, _ in single)
    classes = (with_memory and tuple(sorted(_sizes(fleet)))) or (0,)
    filling, turning = list[Worth](), list[Worth]()
    for total in classes:
        asked: dict[tuple[int, int], float] = {}
        for shape, weight in single:
            share = (shape.core_milli, memory_levels(shape.card_memory_mib, total))
            asked[share] = asked.get(share, 0.0) + weight
        shares = [Share(core, memory, weight) for (core, memory), weight in asked.items()]
        levels = MEMORY_LEVELS if total else 0
        filling.append(worth_of_remainders([s for s in shares if s.core_milli < WHOLE_CARD], levels))
        turning.append(use_of_remainders(shares, IMPATIENCE, levels))
    return Prices(mix, classes, tuple(filling), tuple(turning), Stranding(mix), _model_charges(mix, fleet))


def _model_charges(mix: Mix, fleet: Fleet) -> FloatArray:
    """Return the demand for each model by pods that accept only some, relative to the capacity of those models."""
    capacity = np.array([fleet.count[fleet.model == code].sum() for code in range(len(fleet.models))]) * WHOLE_CARD
    asked = sum(shape.gpu_milli * weight for shape, weight in mix.weights.items())
    charge = np.zeros(len(fleet.models))
    bound: dict[tuple[str, ...], float] = {}
    for shape, weight in mix.weights.items():
        if shape.models and shape.gpu_milli:
            bound[shape.models] = bound.get(shape.models, 0.0) + shape.gpu_milli * weight
    for models, gpu in bound.items():
        accepted = np.isin(np.array(fleet.models), models)
        room = capacity[accepted].sum()
        if room and asked:
            charge += accepted * (gpu / asked * capacity.sum() / room)
    return charge
