"""After long looks for cards in vain, the pods of their namespace wait.

The extender serves all tenants, one question after the other. So each gets a tenth of its time for such looks. Short
ones add up: a tenant may have hundreds of gangs."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

LONG_SECONDS: Final = 0.05
"""Looks that take no longer together cost others no more than they notice."""
REST: Final = 9
"""A namespace waits for so many times as long as its looks took."""


class Look:
    """A look that goes on. It was in vain unless `found` is set."""

    found = False


class Rests:
    """Remembers which namespaces rest. `work` counts seconds of work, `clock` seconds that pass."""

    def __init__(self, *, clock: Callable[[], float], work: Callable[[], float]) -> None:
        self._clock = clock
        self._work = work
        self._until: dict[str, float] = {}
        self._spent: dict[str, tuple[float, float]] = {}
        """Seconds of looks in vain that no rest has paid for yet, and when the last of them ended."""
        self.left_out: dict[str, str] = {}
        """By namespace, the first gang that the last look at all pods left out: the next one begins with it."""

    def seconds(self, namespace: str) -> float:
        """Return how long to wait before the next look for a pod of the namespace; 0 if there may be one now."""
        left = self._until.get(namespace, 0.0) - self._clock()
        if left <= 0:
            self._until.pop(namespace, None)
        return max(0.0, left)

    @contextmanager
    def look(self, namespace: str) -> Generator[Look]:
        """Surround a look for cards. One that raises was in vain."""
        look, began = Look(), self._work()
        try:
            yield look
        finally:
            if not look.found:
                self._spend(namespace, self._work() - began)

    def _spend(self, namespace: str, took: float) -> None:
        """Let the namespace rest if its looks in vain were long. Time that passes pays for them, as a rest does."""
        now = self._clock()
        self._spent = {name: (spent, at) for name, (spent, at) in self._spent.items() if spent > (now - at) / REST}
        spent, at = self._spent.pop(namespace, (0.0, now))
        if (owed := spent - (now - at) / REST + took) > LONG_SECONDS:
            self._until[namespace] = now + REST * owed
        else:
            self._spent[namespace] = owed, now
