"""What a policy is: it ranks nodes that fit, and the cards of a node. Whether a pod fits is never its business."""

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

    What only some policies do has a default that does nothing. `generation` grows when scores given earlier no longer
    hold (new prices, another mix): all of them are then asked for anew.

    A policy may keep something back whose worth depends on the whole cluster. A score holds until its node changes;
    what is scarce changes with every placement anywhere. So such a policy *marks* what a pod would use up on each row,
    and says what each mark costs when the decision is made.
    """

    generation: int = 0
    priced: ClassVar[bool] = False
    """Whether it decides by prices of the job mix, which somebody has to compute for it (`use_prices`)."""
    drawn: ClassVar[bool] = False
    """Whether scores are drawn by lot, so that not even equal nodes score equally."""

    @classmethod
    def check_installed(cls) -> None:
        """Raises MissingExtra where a package that it needs is not installed."""

    @abstractmethod
    def rank_nodes(self, fleet: Fleet, shape: Shape, rows: IntArray) -> FloatArray:
        """How good each row would be, shape (rows,), whether or not the pod fits there."""

    @abstractmethod
    def rank_cards(self, fleet: Fleet, shape: Shape, row: int) -> tuple[int, ...]:
        """The columns to use on a row that fits."""

    def rank_and_mark(
        self, fleet: Fleet, shape: Shape, rows: IntArray, state: IntArray
    ) -> tuple[FloatArray, Marks | np.uint8]:
        """`rank_nodes` (`state` is the fleet's at `rows`), and what the pod would use up on each row, as an index into
        `charges`; 0 is nothing."""
        return self.rank_nodes(fleet, shape, rows), UNMARKED

    def attend(self, fleet: Fleet) -> None:
        """Look at what changed in the fleet, before a decision; `generation` may grow by it."""

    def charges(self) -> FloatArray | None:
        """What each mark costs now, to be taken off the score; None when nothing costs anything."""
        return None

    def mix_changed(self, mix: Mix) -> None:
        """The job mix is this now."""

    def use_prices(self, fleet: Fleet, prices: Prices) -> None:
        """Decide by these prices from now on."""
