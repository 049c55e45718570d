"""Things that are told again after a while at the earliest."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

MOST: Final = 1024
"""Keys remembered: more than a node has pods or slices."""


class Seldom:
    """Remembers when something was told last, by key. It is due again after `seconds` of the clock."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._told_at: OrderedDict[Hashable, float] = OrderedDict()

    def is_due(self, key: Hashable) -> bool:
        return self._clock() - self._told_at.get(key, -self._seconds) >= self._seconds

    def told(self, key: Hashable) -> None:
        """Remember that it was told now. Forget the key that was told longest ago, if there are more than MOST."""
        self._told_at[key] = self._clock()
        self._told_at.move_to_end(key)
        if len(self._told_at) > MOST:
            self._told_at.popitem(last=False)
