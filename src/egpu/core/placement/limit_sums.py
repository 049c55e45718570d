"""Sums of limits of compute on cards, while the containers of one pod are placed on them.

A class may bound the sum of the limits of all slices on a card (`maxCoreLimits`). The bound holds for a card as long as
a slice of the class is there, whoever comes later. The lowest bound of a card counts.
"""

from dataclasses import dataclass

import numpy as np

from egpu.api.allocation import ContainerDemand, Role
from egpu.core.arrays import BoolArray, IntArray
from egpu.core.demand.limits import WHOLE
from egpu.core.provisioners import Needs


@dataclass
class LimitSums:
    """The sums of limits, and their bounds (0: none), at the pod's peak; arrays of shape (candidates, cards)."""

    limits: IntArray
    most: IntArray
    base: IntArray
    """Sums without this pod."""

    def after(self, demand: ContainerDemand, needs: Needs, role: Role) -> tuple[IntArray, IntArray]:
        """Return the sums and the bounds with this container. An init container beside sidecars counts as if it ran
        beside the apps too: the sum may be too high, never too low."""
        own = np.where(needs.core > 0, np.maximum(needs.core, demand.core_limit), WHOLE)
        limits = np.maximum(self.limits, self.base + own) if role.init and not role.beside else self.limits + own
        bound = demand.max_core_limits
        most = self.most if not bound else np.where(self.most == 0, bound, np.minimum(self.most, bound))
        return limits, most

    def eligible(self, demand: ContainerDemand, needs: Needs, role: Role) -> BoolArray:
        """Return the cards whose sum stays within all bounds."""
        limits, most = self.after(demand, needs, role)
        found: BoolArray = (most == 0) | (limits <= most)
        return found

    def take(self, demand: ContainerDemand, needs: Needs, at: tuple[IntArray, IntArray], role: Role) -> None:
        """Add a container to the cells `at`."""
        limits, most = self.after(demand, needs, role)
        self.limits[at], self.most[at] = limits[at], most[at]
