"""Shares the time of this node's cards among its slots, executors of other nodes' pods, and other slices of the
machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from egpu.adapters.executors.process import Executor
from egpu.adapters.local.election import SharingElection
from egpu.adapters.slices.pages import PPM
from egpu.adapters.slices.sharing import TimeSharing, TimeSlice
from egpu.apps.agent.slots.directories import Slots
from egpu_base.runtime.looking import looking


class ComputeSharing:
    """Updates the policy pages of one node's slots with the grants of active slices. `served`: by name, the executors
    of pods of other nodes that run now."""

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
        self.served: Mapping[str, Executor[Any]] = {}
        self._sharing = TimeSharing(self._slices, self._stamp, clock=clock)
        self.demand = self._sharing.demand
        self.long_kernels = self._sharing.long_kernels

    async def run(self) -> None:
        await looking(self._sharing.next)

    def step(self) -> float:
        """Look once and write changes. Returns the seconds until the next look."""
        return self._sharing.step()

    def delaying_seconds(self) -> Mapping[tuple[Hashable, str], float]:
        """Return the length of kernels that delay latency work, by the key of their slice, as in metrics, and card."""
        executors: dict[Hashable, Hashable] = {
            (one.name, one.process): (one.record.name, one.record.pid) for one in tuple(self.served.values())
        }
        found = self._sharing.long_kernels()
        return {(executors.get(one.key, one.key), one.uuid): one.kernel_ns / 1e9 for one in found}

    def _slices(self) -> Iterator[TimeSlice]:
        for record, *_ in self._slots.slices():
            policy, usage = self._slots.policy_file(record.slot_id), self._slots.usage_file(record.slot_id)
            yield TimeSlice(record.slice, policy, usage, _ceiling_ppm(record.allocation.core_limit))
        for executor in tuple(self.served.values()):
            policy, usage = executor.directory / "policy", executor.directory / "usage"
            key = executor.name, executor.process
            yield TimeSlice(key, policy, usage, _ceiling_ppm(executor.record.core_limit))
        if self._election is not None and self._election.leads():
            yield from self._election.slices()

    def _stamp(self) -> Hashable:
        others = self._election.stamp() if self._election is not None and self._election.leads() else None
        return self._slots.last_change, tuple(self.served), others


def _ceiling_ppm(core_limit: int) -> int:
    return min(core_limit, 100) * PPM // 100
