"""Elect the arbiter of a book's slices that share the room of their cards: a thread of `egpu run`.

Every run of the book takes part, also one whose own slice keeps its room. If the arbiter is killed, the next one goes
on with what the policy pages say, and programs that wait for room get it.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from egpu.adapters.local.book import MIB, Book
from egpu.adapters.local.election import FOLLOW_SECONDS, lock
from egpu.adapters.local.holders import Holder, RoomTerms
from egpu.adapters.local.looking import LookingThread
from egpu.adapters.slices.rooms import Rooms, SharedCard, SharedSlice
from egpu_base.system.files import last_change

LOCK: Final = "arbiter.lock"
AGAIN_SECONDS: Final = 1.0
"""Between two readings of a book that did not change. They remove dead holders, so their room is free."""


class BookRooms:
    """Gives the slices of a book their room while its process leads. The kernel drops the lock with its holder."""

    def __init__(self, book: Book, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._book = book
        self._clock = clock
        self._rooms = Rooms(self.cards, clock=clock)
        self._held: int | None = None
        self._read: tuple[float, int] = (0.0, 0)
        self._cards: Mapping[str, SharedCard] = {}

    def step(self) -> float:
        """Look once, if it leads; return the seconds until the next look."""
        if not self.leads():
            return FOLLOW_SECONDS
        return min(FOLLOW_SECONDS, self._rooms.step())

    def leads(self) -> bool:
        """Return whether this process is the arbiter now. Take the lead when no process has it."""
        if self._held is None:
            self._held = lock(self._book.directory / LOCK)
        return self._held is not None

    def leave(self) -> None:
        """Let another process lead."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def thread(self) -> LookingThread:
        return LookingThread("rooms", self.step, leave=self.leave)

    def cards(self) -> Mapping[str, SharedCard]:
        """Return the cards with slices that share room, by UUID. All other slices keep what they asked for."""
        now, changed = self._clock(), last_change(self._book.directory)
        read_at, read = self._read
        if changed != read or now - read_at >= AGAIN_SECONDS:
            with self._book.locked():
                holders = self._book.holders()
            self._cards = self._shared(holders)
            self._read = now, changed
        return self._cards

    def _shared(self, holders: Sequence[Holder]) -> Mapping[str, SharedCard]:
        memory_mib: dict[str, int] = {}
        promised_mib: Counter[str] = Counter()
        shared: dict[str, list[SharedSlice]] = {}
        for holder in holders:
            if holder.room is None:
                promised_mib.update(dict.fromkeys(holder.uuids, holder.memory_mib))
                continue
            for uuid in holder.uuids:
                memory_mib[uuid] = holder.room.card_memory_mib
                shared.setdefault(uuid, []).append(self._slice(holder, holder.room))
        return {
            uuid: SharedCard((memory_mib[uuid] - promised_mib[uuid]) * MIB, tuple(slices))
            for uuid, slices in shared.items()
        }

    def _slice(self, holder: Holder, room: RoomTerms) -> SharedSlice:
        directory = self._book.slice_directory(holder)
        return SharedSlice(
            key=holder.name,
            policy=directory / "policy",
            usage=directory / "usage",
            limit_bytes=holder.memory_mib * MIB,
            floor_bytes=room.resident_mib * MIB,
            idle_seconds=room.idle_seconds,
        )
