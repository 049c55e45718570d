"""A thread that looks after something of a local slice while its command runs."""

import threading
from collections.abc import Callable
from types import TracebackType


class LookingThread:
    """While it is entered calls `look`, which says how many seconds it is until the next time; afterwards `leave`."""

    def __init__(
        self, name: str, look: Callable[[], float], *, leave: Callable[[], None], first_seconds: float = 0
    ) -> None:
        """`first_seconds`: until the first look."""
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
            pause_seconds = self._look()
        self._leave()
