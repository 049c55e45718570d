"""Holds a local slice to its memory by what the driver says, while its command runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType

from egpu.adapters.local.book import LocalSlice
from egpu.adapters.nvml import NvmlInventory
from egpu.adapters.processes import Process
from egpu.adapters.slices.attribution import WatchedSlice
from egpu.adapters.slices.overruns import MemoryWatch, kill_holders


class MemoryGuard:
    """A thread that looks while it is entered. Processes that keep the slice over its limit are ended, `tell` is told
    why, and the user waits for the next slice. The slice's are all descendants of this process (`run` sees to it that
    none leaves), whatever they show of its policy page."""

    def __init__(self, local: LocalSlice, inventory: NvmlInventory, tell: Callable[[str], None]) -> None:
        directory = local.directory
        self._local = local
        self._slice = WatchedSlice(
            key=local.holder.name, policy=directory / "policy", usage=directory / "usage", root=Process.of(os.getpid())
        )
        self._inventory = inventory
        self._tell = tell
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        watch = MemoryWatch(self._inventory)
        while not self._over.wait(watch.pause_seconds):
            for overrun in watch.step([self._slice]) if watch.is_due() else ():
                if killed := kill_holders(overrun):
                    self._local.note_overrun()
                    self._tell(f"processes {', '.join(map(str, killed))} of the slice are ended: {overrun}")
        self._inventory.close()
