"""The node's cards as the agent knows them now, read again and again. Listeners are told about changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Protocol

import structlog

from egpu.adapters.cards.nvml import CardProcess, CardReading
from egpu_base.errors import ElasticGPUError, NativeMissing

log = structlog.get_logger(__name__)


class CardSource(Protocol):
    """Reads the machine's cards and the memory that processes have of them; blocks. Raises NativeMissing,
    Unavailable."""

    def read(self) -> tuple[CardReading, ...]: ...

    def processes(self) -> Mapping[str, tuple[CardProcess, ...]]: ...

    def used_bytes(self) -> Mapping[str, int]: ...

    def close(self) -> None: ...


class Inventory:
    """The last reading of the `cards`, by UUID. If the driver does not answer, every known card is unhealthy."""

    def __init__(self, source: CardSource, *, interval_seconds: float, driver_needed: bool = True) -> None:
        """`driver_needed` False: a machine without NVIDIA's driver has no cards, which is no error."""
        self._source = source
        self._driver_needed = driver_needed
        self._interval_seconds = interval_seconds
        self._changed = asyncio.Condition()
        self.cards: dict[str, CardReading] = {}
        self.version = 0
        """A number that grows with every change; 0 until the first reading."""
        self.failure: ElasticGPUError | None = None
        """Why the driver did not answer the last reading; None if it did, or is not needed."""

    async def run(self) -> None:
        """Read forever."""
        try:
            while True:
                await self.refresh()
                await asyncio.sleep(self._interval_seconds)
        finally:
            await asyncio.to_thread(self._source.close)

    async def refresh(self) -> None:
        """Read once, now."""
        try:
            found = {card.uuid: card for card in await asyncio.to_thread(self._source.read)}
            self.failure = None
        except ElasticGPUError as error:
            log.warning("cards cannot be read", reason=str(error))
            missing = isinstance(error, NativeMissing) and not self._driver_needed
            self.failure = None if missing else error
            if not self.version and not missing:
                return
            found = {uuid: _unanswered(card) for uuid, card in self.cards.items()}
        if self.version and found == self.cards:
            return
        for uuid, card in found.items():
            before = self.cards.get(uuid)
            if before is None or before.healthy != card.healthy:
                log.info("card", uuid=uuid, model=card.model, healthy=card.healthy, reason=card.reason)
        async with self._changed:
            self.cards = found
            self.version += 1
            self._changed.notify_all()

    async def changes(self) -> AsyncIterator[dict[str, CardReading]]:
        """Yield the cards now, and again after every change."""
        seen = 0
        while True:
            async with self._changed:
                while self.version == seen:
                    await self._changed.wait()
                seen, cards = self.version, self.cards
            yield cards

    @property
    def minors(self) -> tuple[int, ...]:
        """Return the minor numbers of all cards, ascending."""
        return tuple(sorted({card.minor for card in self.cards.values()}))


def _unanswered(card: CardReading) -> CardReading:
    return replace(card, healthy=False, reason="the driver does not answer")
