"""Sets how long programs keep time-sliced cards: before the first container with that length starts, and back after
the last.

The setting belongs to the card and outlives the agent. So a file per card records each change before it is made. If
the agent is killed in between, the next one finds the file, and resets cards that no slot needs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from egpu.api.allocation import ContainerAllocation
from egpu.apps.agent.slots.directories import Slots
from egpu.core.provisioners import provisioner
from egpu.core.provisioners.timeslice import DEFAULT
from egpu_base.errors import NotSupported
from egpu_base.runtime.beats import rest
from egpu_base.system.files import write_atomically

log = structlog.get_logger(__name__)

INTERVAL_SECONDS = 5.0


class TimeSlices:
    """Sets lengths. `set_length` (UUID, length) changes a card; it blocks, and raises NotSupported if it cannot."""

    def __init__(self, slots: Slots, directory: Path, set_length: Callable[[str, str], None]) -> None:
        self._slots = slots
        self._directory = directory
        self._set = set_length
        self._lock = asyncio.Lock()
        self._preparing = Counter[str]()
        """Cards whose slots are being made: they need their length, although no slot says so yet."""

    @asynccontextmanager
    async def while_made(self, allocation: ContainerAllocation) -> AsyncGenerator[None]:
        """Set the length on a container's cards; its slot is made inside. Raises NotSupported."""
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
                log.warning("time slices not checked", reason=str(error))
            await rest(INTERVAL_SECONDS)

    async def step(self) -> Sequence[str]:
        """Reset cards that no container needs changed, and return them."""
        # A name that begins with a dot was never renamed into place.
        changed = [each.name for each in self._directory.glob("[!.]*")]
        back: list[str] = []
        for uuid in sorted(changed):
            async with self._lock:
                if self._preparing[uuid] or uuid in self._wanted():
                    continue
                try:
                    await asyncio.to_thread(self._set, uuid, DEFAULT)
                except NotSupported as error:
                    log.warning("time slice of a card not reset", uuid=uuid, reason=str(error))
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
