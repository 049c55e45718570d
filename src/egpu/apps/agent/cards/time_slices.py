"""How long programs keep time-sliced cards: set before the first container of that length starts, and set back once the
last one is gone.

The setting is the card's and outlives us, so what we are about to change is written down before it is changed: a file
per card. An agent that is killed in between finds the file, and sets back what no slot wants.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from egpu.adapters.files import write_atomically
from egpu.api.allocation import ContainerAllocation
from egpu.apps.agent.slots.directories import Slots
from egpu.core.provisioners import provisioner
from egpu.core.provisioners.timeslice import DEFAULT
from egpu.errors import NotSupported
from egpu.runtime.beats import rest

log = structlog.get_logger(__name__)

INTERVAL_SECONDS = 5.0


class TimeSlices:
    """`set_length` (UUID, length) changes a card; it blocks, and raises NotSupported where it cannot."""

    def __init__(self, slots: Slots, directory: Path, set_length: Callable[[str, str], None]) -> None:
        self._slots = slots
        self._directory = directory
        self._set = set_length
        self._lock = asyncio.Lock()
        self._preparing = Counter[str]()
        """Cards whose slots are being made: they want their length, although no slot says so yet."""

    @asynccontextmanager
    async def while_made(self, allocation: ContainerAllocation) -> AsyncGenerator[None]:
        """The cards of a container have its length from now on; its slot is made inside. Raises NotSupported."""
        length = provisioner(allocation.provisioner).time_slice(allocation)
        cards = [share.uuid for share in allocation.cards] if length else []
        self._preparing.update(cards)
        try:
            for uuid in cards:
                await self._change(uuid, length)
            yield
        finally:
            self._preparing.subtract(cards)

    async def _change(self, uuid: str, length: str) -> None:
        async with self._lock:
            self._directory.mkdir(parents=True, exist_ok=True)
            write_atomically(self._directory / uuid, length.encode())
            await asyncio.to_thread(self._set, uuid, length)

    async def run(self) -> None:
        while True:
            try:
                await self.step()
            except OSError as error:
                log.warning("time slices are not looked after", reason=str(error))
            await rest(INTERVAL_SECONDS)

    async def step(self) -> Sequence[str]:
        """Set back the cards that no container wants otherwise; returns them."""
        # What begins with a dot was never put in place.
        changed = [each.name for each in self._directory.glob("[!.]*")]
        back: list[str] = []
        for uuid in sorted(changed):
            async with self._lock:
                if self._preparing[uuid] or uuid in self._wanted():
                    continue
                try:
                    await asyncio.to_thread(self._set, uuid, DEFAULT)
                except NotSupported as error:
                    log.warning("the time slice of a card is not set back", uuid=uuid, reason=str(error))
                    continue
                (self._directory / uuid).unlink()
                back.append(uuid)
        return back

    def _wanted(self) -> set[str]:
        return {
            share.uuid
            for record in self._slots.records()
            if provisioner(record.allocation.provisioner).time_slice(record.allocation)
            for share in record.allocation.cards
        }
