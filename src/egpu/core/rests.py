"""After a long look for cards in vain, the pods of its namespace wait.

The extender serves all tenants, one question after the other. So each gets a tenth of its time for such looks."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

LONG_SECONDS: Final = 0.05
"""A shorter look costs others no more than they notice."""
REST: Final = 9
"""A namespace waits for so many times as long as its look took."""


class Look:
    """A look that goes on. It was in vain unless `found` is set."""

    found = False


class Rests:
    """Remembers which namespaces rest. `work` counts seconds of work, `clock` seconds that pass."""

    def __init__(self, *, clock: Callable[[], float], work: Callable[[], float]) -> None:
        self._clock = clock
        self._work = work
        self._until: dict[str, float] = {}

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
            if not look.found and (took := self._work() - began) > LONG_SECONDS:
                self._until[namespace] = self._clock() + REST * took
