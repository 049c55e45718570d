"""The interface of a policy: it ranks nodes that fit, and the cards of a node. It never decides whether a pod fits."""

from abc import abstractmethod
from typing import ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from egpu.core.arrays import FloatArray, IntArray
from egpu.core.policies.fleet import Fleet
from egpu.core.policies.prices import Prices
from egpu.core.policies.shapes import Mix, Shape

Marks = NDArray[np.uint8]
UNMARKED: Final = np.uint8(0)


class Policy(Protocol):
    """Two rankings. More is better; ties between nodes go to the lowest row, between cards to the lowest column.

    Methods that only some policies need do nothing by default. `generation` grows when earlier scores no longer hold
    (new prices, another mix); then all are computed again.

    A policy may reserve something whose worth depends on the whole cluster. A score holds until its node changes, but
    scarcity changes with every placement anywhere. So such a policy *marks* what a pod would use up on each row, and
    returns the cost of each mark at the time of the decision.
    """

    prefers: ClassVar[str]
    """Ends the sentence "the policy prefers the node …"."""
    generation: int = 0
    priced: ClassVar[bool] = False
    """True if it decides by prices of the job mix, computed elsewhere (`use_prices`)."""
    drawn: ClassVar[bool] = False
    """True if scores are random, so that even equal nodes have different scores."""

    @classmethod
    def check_installed(cls) -> None:
        """Raise MissingExtra if a package that it needs is not installed."""

    @abstractmethod
    def rank_nodes(self, fleet: Fleet, shape: Shape, rows: IntArray) -> FloatArray:
        """Return how good each row is, shape (rows,), whether or not the pod fits there."""

    @abstractmethod
    def rank_cards(self, fleet: Fleet, shape: Shape, row: int) -> tuple[int, ...]:
        """Return the columns to use on a row that fits."""

    def rank_and_mark(
        self, fleet: Fleet, shape: Shape, rows: IntArray, state: IntArray
    ) -> tuple[FloatArray, Marks | np.uint8]:
        """Return `rank_nodes` (`state` is the fleet's at `rows`), and what the pod would use up on each row, as an
        index into `charges`; 0 is nothing."""
        return self.rank_nodes(fleet, shape, rows), UNMARKED

    def attend(self, fleet: Fleet) -> None:
        """Process changes of the fleet, before a decision; `generation` may grow."""

    def charges(self) -> FloatArray | None:
        """Return the present cost of each mark, to subtract from the score; None if all are free."""
        return None

    def mix_changed(self, mix: Mix) -> None:
        """Use this job mix from now on."""

    def use_prices(self, fleet: Fleet, prices: Prices) -> None:
        """Use these prices from now on."""
