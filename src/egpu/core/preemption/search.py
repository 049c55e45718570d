"""The cheapest set of units that helps: exactly while the number of trials lasts, else a set of which nobody could be
spared."""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from egpu.core.preemption.budgets import Budgets
from egpu.core.preemption.victims import NOTHING, Cost, Unit

TRIALS: Final = 256
"""Sets tried of one group of units. Eight units are searched to the end; of more, the sets of the cheapest few."""

Chosen = tuple[Unit, ...]
Helps = Callable[[Sequence[Unit]], bool]
"""Whether there is room when these are gone. More of them never make less room."""


def cheapest(units: Sequence[Unit], helps: Helps, budgets: Budgets, *, below: Cost | None = None) -> Chosen | None:
    """The cheapest set of `units` (sorted by cost) that helps and breaks no budget, if it costs less than `below`."""
    order = itertools.count()
    waiting: list[tuple[Cost, int, tuple[int, ...]]] = [(NOTHING, next(order), ())]
    for _ in range(TRIALS):
        if not waiting:
            return None
        cost, _, chosen = heapq.heappop(waiting)
        if below is not None and cost >= below:
            return None
        picked = tuple(units[at] for at in chosen)
        if picked and helps(picked):
            return picked
        for at in range(chosen[-1] + 1 if chosen else 0, len(units)):
            if _allowed((*picked, units[at]), budgets):
                heapq.heappush(waiting, (cost.plus(units[at].cost), next(order), (*chosen, at)))
    found = _all_but_the_spared(units, helps, budgets)
    costs = NOTHING
    for unit in found or ():
        costs = costs.plus(unit.cost)
    return found if below is None or costs < below else None


def _all_but_the_spared(units: Sequence[Unit], helps: Helps, budgets: Budgets) -> Chosen | None:
    """As kube-scheduler does it: with all gone that may go, the most important ones come back while there is room."""
    gone: list[Unit] = []
    for unit in units:
        if _allowed((*gone, unit), budgets):
            gone.append(unit)
    if not helps(gone):
        return None
    for unit in reversed(list(gone)):
        spared = [one for one in gone if one is not unit]
        if helps(spared):
            gone = spared
    return tuple(gone)


def _allowed(units: Sequence[Unit], budgets: Budgets) -> bool:
    charges: Counter[str] = Counter()
    for unit in units:
        charges.update(unit.charges)
    return budgets.allow(charges)
