"""Gives back what ended programs of shared slices still count for: see `egpu.adapters.slices.reaping`."""

from __future__ import annotations

import asyncio

import structlog

from egpu.adapters.slices.reaping import reap
from egpu.apps.agent.slots.directories import POLICY_FILE, Slots

INTERVAL_SECONDS = 0.5

log = structlog.get_logger(__name__)


class EndedPrograms:
    """Of slices that several slots have: in one that is a container's own, its programs see to it themselves."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            await asyncio.to_thread(self.step)

    def step(self) -> None:
        """Look once."""
        for record, *_ in self._slots.slices():
            # An executor writes its file itself, whoever its programs are.
            if record.allocation.shared_claim and (self._slots.path(record.slot_id) / POLICY_FILE).exists():
                try:
                    rows = reap(self._slots.usage_file(record.slot_id))
                except OSError as error:
                    log.info("ended programs are not looked for", slot_id=record.slot_id, reason=str(error))
                    continue
                if rows:
                    log.info("ended programs are counted no more", slot_id=record.slot_id, rows=rows)
