"""Takes part in sharing out this machine's cards' time: a thread of `egpu run`, a task of `egpu serve`."""

import time
from collections.abc import Callable, Iterable

from egpu.adapters.local.election import FOLLOW_SECONDS, SharingElection
from egpu.adapters.local.looking import LookingThread
from egpu.adapters.slices.sharing import TimeSharing, TimeSlice


class MachineSharing:
    """Shares out the time of all slices of this machine while its process is the one that leads."""

    def __init__(
        self,
        election: SharingElection,
        *,
        slices: Callable[[], Iterable[TimeSlice]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`slices`: the election's, by who knows more of them."""
        self._election = election
        self._sharing = TimeSharing(slices or election.slices, election.stamp, clock=clock)

    def step(self) -> float:
        """Look once, if it leads; returns how many seconds it is until the next look."""
        if not self._election.leads():
            return FOLLOW_SECONDS
        return self._sharing.next()

    def thread(self) -> LookingThread:
        return LookingThread("sharing", self.step, leave=self._election.leave)
