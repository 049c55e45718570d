"""Take part in sharing this machine's cards' time: a thread of `egpu run`, a task of `egpu serve`."""

import time
from collections.abc import Callable, Iterable

from egpu.adapters.local.election import FOLLOW_SECONDS, SharingElection
from egpu.adapters.local.looking import LookingThread
from egpu.adapters.slices.sharing import TimeSharing, TimeSlice


class MachineSharing:
    """Shares the time of all slices of this machine while its process leads."""

    def __init__(
        self,
        election: SharingElection,
        *,
        slices: Callable[[], Iterable[TimeSlice]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare. `slices` replaces the election's list, for a caller that knows more of them."""
        self._election = election
        self._sharing = TimeSharing(slices or election.slices, election.stamp, clock=clock)

    def step(self) -> float:
        """Look once, if it leads; return the seconds until the next look."""
        if not self._election.leads():
            self._sharing.rest()
            return FOLLOW_SECONDS
        return self._sharing.next()

    def thread(self) -> LookingThread:
        return LookingThread("sharing", self.step, leave=self._election.leave)
