"""Returns memory that ended programs of shared slices still count for: see `egpu.adapters.slices.reaping`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import structlog

from egpu.adapters.slices.reaping import reap
from egpu.apps.agent.slots.directories import POLICY_FILE, Slots
from egpu_base.runtime.beats import rest

INTERVAL_SECONDS = 0.5
REST_SECONDS = 2.0
"""Pause while no slice is shared: nothing has ended yet in a new one."""

log = structlog.get_logger(__name__)


class EndedPrograms:
    """Handles slices that several slots have. In a slice of one container, the programs do it themselves."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._listed = 0
        self._shared: list[str] = []

    async def run(self) -> None:
        while True:
            await rest(INTERVAL_SECONDS if self._shared else REST_SECONDS)
            if self._shared or self._slots.last_change != self._listed:
                await asyncio.to_thread(self.step)

    def step(self) -> None:
        """Look once. Slots are listed only after one came or went."""
        if (change := self._slots.last_change) != self._listed:
            self._listed, self._shared = change, list(self._shared_slots())
        for slot_id in self._shared:
            try:
                rows = reap(self._slots.usage_file(slot_id))
            except OSError as error:
                log.info("ended programs not checked", slot_id=slot_id, reason=str(error))
                continue
            if rows:
                log.info("ended programs removed from the count", slot_id=slot_id, rows=rows)

    def _shared_slots(self) -> Iterator[str]:
        """Yield one slot of each shared slice. An executor writes its own usage file, whichever programs it serves."""
        for record, *_ in self._slots.slices():
            if record.allocation.shared_claim and (self._slots.path(record.slot_id) / POLICY_FILE).exists():
                yield record.slot_id
