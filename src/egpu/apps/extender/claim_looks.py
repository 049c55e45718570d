"""Looks for the cards of ResourceClaims that found none: how soon to look again.

One look for a large gang, or for a pod with many requests, takes the extender up to seconds, in which it serves nobody
else. So one look counts for all members of a gang, and after a long one the pods of its namespace wait.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from egpu.core.rests import Rests
from egpu_base.errors import DoesNotFit

COUNTS_SECONDS: Final = 9.0
"""How long one look counts for the other members of a gang, unless there is more room. Less than a pod's retry."""


class ClaimLooks:
    """Remembers looks in vain. `work` counts seconds of work, `clock` seconds that pass."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, work: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._rests = Rests(clock=clock, work=work)
        self._found: dict[str, tuple[float, str]] = {}
        """Why a gang (`namespace/name`) does not fit, and until when that counts."""

    def rest_seconds(self, namespace: str) -> float:
        """Return how long to wait before the next look for a pod of the namespace; 0 if there may be one now."""
        return self._rests.seconds(namespace)

    def why_not(self, gang: str) -> str:
        """Return why the gang does not fit, by a look for another member; empty if it is to be looked at."""
        until, reason = self._found.get(gang, (0.0, ""))
        if until <= self._clock():
            self._found.pop(gang, None)
            return ""
        return reason

    @contextmanager
    def look(self, namespace: str, gang: str = "") -> Generator[None]:
        """Surround a look for a pod's cards."""
        try:
            with self._rests.look(namespace) as look:
                yield
                look.found = True
        except DoesNotFit as error:
            if gang:
                self._found[gang] = self._clock() + COUNTS_SECONDS, str(error)
            raise

    def changed(self, gang: str) -> None:
        """Look at the gang again: its members or their claims have changed."""
        self._found.pop(gang, None)

    def made_room(self) -> None:
        """Look at all gangs again."""
        self._found.clear()
