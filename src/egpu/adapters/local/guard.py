"""Enforce a local slice's memory limit by the driver's account, while its command runs."""

from __future__ import annotations

import os
from collections.abc import Callable

from egpu.adapters.cards.nvml import NvmlInventory
from egpu.adapters.local.book import LocalSlice
from egpu.adapters.local.looking import LookingThread
from egpu.adapters.slices.attribution import WatchedSlice
from egpu.adapters.slices.overruns import MemoryWatch, end_processes
from egpu_base.system.processes import Process


class MemoryGuard:
    """Ends processes that keep the slice over its limit, gives `tell` the reason, and makes the user wait for the next
    slice. The slice's processes are all descendants of this process (`run` ensures that none leaves), whatever they
    show of its policy page."""

    def __init__(self, local: LocalSlice, inventory: NvmlInventory, tell: Callable[[str], None]) -> None:
        directory = local.directory
        self._local = local
        self._slice = WatchedSlice(
            key=local.holder.name, policy=directory / "policy", usage=directory / "usage", root=Process.of(os.getpid())
        )
        self._inventory = inventory
        self._watch = MemoryWatch(inventory)
        self._tell = tell

    def thread(self) -> LookingThread:
        """Return the thread, which opens NVML at its first look: a short command need not wait for that."""
        return LookingThread("memory", self._look, leave=self._inventory.close, first_seconds=self._watch.pause_seconds)

    def _look(self) -> float:
        for overrun in self._watch.step([self._slice]) if self._watch.is_due() else ():
            if killed := end_processes(overrun.processes):
                self._local.note_overrun()
                self._tell(f"processes {', '.join(map(str, killed))} of the slice were ended: {overrun}")
        return self._watch.pause_seconds
