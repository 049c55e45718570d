"""Takes part in sharing out this machine's cards' time: a thread of `egpu run`, a task of `egpu serve`."""

import threading
import time
from collections.abc import Callable
from types import TracebackType

from egpu.adapters.local.election import FOLLOW_SECONDS, SharingElection
from egpu.adapters.slices.sharing import TimeSharing


class MachineSharing:
    """Shares out the time of all slices of this machine while its process is the one that leads."""

    def __init__(self, election: SharingElection, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._election = election
        self._sharing = TimeSharing(election.slices, clock=clock)

    def step(self) -> float:
        """Look once, if it leads; returns how many seconds it is until the next look."""
        return self._sharing.step() if self._election.leads() else FOLLOW_SECONDS


class SharingThread:
    """A thread that takes part while it is entered."""

    def __init__(self, election: SharingElection) -> None:
        self._election = election
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sharing", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        sharing = MachineSharing(self._election)
        while not self._over.wait(sharing.step()):
            pass
        self._election.leave()
