"""Shares the time of this node's cards among its slots and the other slices of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator

from egpu.adapters.local.election import SharingElection
from egpu.adapters.slices.pages import PPM
from egpu.adapters.slices.sharing import TimeSharing, TimeSlice
from egpu.apps.agent.slots.directories import Slots
from egpu_base.runtime.looking import looking


class ComputeSharing:
    """Updates the policy pages of one node's slots with the grants of active slices."""

    def __init__(
        self,
        slots: Slots,
        *,
        election: SharingElection | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`election`: slices of `egpu run` and `egpu serve` on the same machine share the same windows."""
        self._slots = slots
        self._election = election
        self._sharing = TimeSharing(self._slices, self._stamp, clock=clock)
        self.demand = self._sharing.demand

    async def run(self) -> None:
        await looking(self._sharing.next)

    def step(self) -> float:
        """Look once and write changes. Returns the seconds until the next look."""
        return self._sharing.step()

    def _slices(self) -> Iterator[TimeSlice]:
        for record, *_ in self._slots.slices():
            policy, usage = self._slots.policy_file(record.slot_id), self._slots.usage_file(record.slot_id)
            ceiling_ppm = min(record.allocation.core_limit, 100) * PPM // 100
            yield TimeSlice(record.slice, policy, usage, ceiling_ppm)
        if self._election is not None and self._election.leads():
            yield from self._election.slices()

    def _stamp(self) -> Hashable:
        others = self._election.stamp() if self._election is not None and self._election.leads() else None
        return self._slots.last_change, others
