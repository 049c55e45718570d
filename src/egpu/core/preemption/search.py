"""The cheapest set of units that helps: exact within the number of trials, then a set without needless victims."""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final

from egpu.core.preemption.budgets import Budgets
from egpu.core.preemption.victims import Cost, Unit, cost_of

TRIALS: Final = 256
"""Sets tried of one group of units. Seven units are searched completely; of more, the sets of the cheapest few."""

Chosen = tuple[Unit, ...]
Helps = Callable[[Sequence[Unit]], bool]
"""True if there is room when these are gone. More of them never make less room."""
Pause = Callable[[], Iterable[None]]
"""Returns what to yield where a search may be interrupted: nothing if no pause is due."""


def cheapest(
    units: Sequence[Unit],
    helps: Helps,
    budgets: Budgets,
    *,
    may_help: Helps,
    pause: Pause,
    below: Cost | None = None,
    trials: int = TRIALS,
) -> Generator[None, None, Chosen | None]:
    """Return the cheapest set of `units` (sorted by cost) that helps and breaks no budget, if it costs less than
    `below`. `may_help`: a quick check, which is right if it says no. Pauses between two trials."""
    yield from pause()
    if not may_help(units):
        return None
    needed = tuple(unit for unit in units if not may_help([one for one in units if one is not unit]))
    if not _allowed(needed, budgets) or (below is not None and cost_of(needed) >= below):
        return None
    optional = [unit for unit in units if unit not in needed]
    order, all_help = itertools.count(), False
    waiting: list[tuple[Cost, int, tuple[int, ...]]] = [(cost_of(needed), next(order), ())]
    for _ in range(trials):
        if not waiting:
            return None
        cost, _, chosen = heapq.heappop(waiting)
        if below is not None and cost >= below:
            return None
        picked = (*needed, *(optional[at] for at in chosen))
        yield from pause()
        if may_help(picked):
            if helps(picked):
                return picked
            if not all_help and not (all_help := helps(units)):
                return None
        for at in range(chosen[-1] + 1 if chosen else 0, len(optional)):
            if _allowed((*picked, optional[at]), budgets):
                heapq.heappush(waiting, (cost.plus(optional[at].cost), next(order), (*chosen, at)))
    found = yield from _all_but_the_spared(units, helps, budgets, pause)
    return found if found is not None and (below is None or cost_of(found) < below) else None


def _all_but_the_spared(
    units: Sequence[Unit], helps: Helps, budgets: Budgets, pause: Pause
) -> Generator[None, None, Chosen | None]:
    """Search as kube-scheduler does: with all units gone, the most important ones come back while there is room."""
    gone: list[Unit] = []
    for unit in units:
        if _allowed((*gone, unit), budgets):
            gone.append(unit)
    if not helps(gone):
        return None
    for unit in reversed(list(gone)):
        spared = [one for one in gone if one is not unit]
        yield from pause()
        if helps(spared):
            gone = spared
    return tuple(gone)


def _allowed(units: Sequence[Unit], budgets: Budgets) -> bool:
    charges: Counter[str] = Counter()
    for unit in units:
        if unit.charges:
            charges.update(unit.charges)
    return not charges or budgets.allow(charges)
