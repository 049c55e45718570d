"""A thread that watches a local slice while its command runs."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final

import structlog

AGAIN_SECONDS: Final = 0.25
"""After a look that failed: as long as until a memory look in its turn."""

log = structlog.get_logger(__name__)


class LookingThread:
    """While entered, calls `look`, which returns the seconds until the next call; afterwards `leave`.

    A failed look is logged, and the next one follows.
    """

    def __init__(
        self, name: str, look: Callable[[], float], *, leave: Callable[[], None], first_seconds: float = 0
    ) -> None:
        """Prepare. `first_seconds` is the time until the first look."""
        self._look = look
        self._first_seconds = first_seconds
        self._leave = leave
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        pause_seconds = self._first_seconds
        while not self._over.wait(pause_seconds):
            try:
                pause_seconds = self._look()
            except Exception:
                log.exception("a look at the slice failed; it is looked at again", thread=self._thread.name)
                pause_seconds = AGAIN_SECONDS
        self._leave()
