"""The worth of a remainder of a card where pods depart: its expected use while it lasts.

Where pods depart, waiting for the perfect match is useless: the neighbours of a remainder leave, and everything
changes. So its worth is the expected use under random arrivals, discounted: with q(s) the probability that the next pod
asks for share s,

    V(r) = sum over s that fit of q(s) · (size(s) + V(r - s))  /  (impatience + sum over s that fit of q(s))

A remainder that few pods fit is worth little even if those few would fill it; an untouched card, which most pods want
whole, is worth most. `impatience` is how fast the chance passes, in arrivals.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from egpu.core.policies.patterns import MAX_SHARES, Share, Worth
from egpu.core.policies.shapes import WHOLE_CARD

_FINE_STEP: Final = 10


def use_of_remainders(shares: Sequence[Share], impatience: float, memory_levels: int = 0) -> Worth:
    """Return V of every remainder relative to an untouched card. `shares` are of all pods with one card."""
    able = [s for s in shares if s.weight > 0 and s.core_milli + s.memory > 0 and s.memory <= memory_levels]
    able = sorted(able, key=lambda share: -share.weight)[:MAX_SHARES]
    table = np.zeros((WHOLE_CARD + 1, memory_levels + 1))
    if not able:
        table[WHOLE_CARD, memory_levels] = 1.0
        return Worth(table)
    step = math.gcd(WHOLE_CARD, *(share.core_milli for share in able))
    if memory_levels:
        step = max(step, _FINE_STEP)
    height = WHOLE_CARD // step
    cores = np.array([-(-share.core_milli // step) for share in able])
    memories = np.array([share.memory for share in able])
    chance = np.array([share.weight for share in able])
    chance = chance / chance.sum()
    size = np.maximum(cores / height, memories / max(memory_levels, 1))
    value = np.zeros((height + 1, memory_levels + 1))
    for core in range(height + 1):
        reachable = cores <= core
        for memory in range(memory_levels + 1):
            fit = reachable & (memories <= memory)
            if fit.any():
                then = value[core - cores[fit], memory - memories[fit]]
                gain = (chance[fit] * (size[fit] + then)).sum()
                value[core, memory] = gain / (impatience + chance[fit].sum())
    # A larger remainder may have a worse use by chance, but could always be used as the smaller one.
    value = np.maximum.accumulate(np.maximum.accumulate(value, axis=0), axis=1)
    table[:] = value[np.arange(WHOLE_CARD + 1) // step]
    return Worth(table / max(float(value[-1, -1]), 1e-9))
