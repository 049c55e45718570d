"""Carry out the arbiter's decisions (`egpu.core.arbiter`): read what slices of a card say, and write their rooms.

A slice's usage file says how much of it is on the card, and whether it waits for room. What it says is believed about
itself only, and no further than its limit. Memory that the driver sees and the slice does not count is in the policy
page as overhead, and counts as on the card. So does what the driver sees and nothing else tells: a false total hides
the overhead. Memory that the slice counts and the driver does not see counts for a moment only: an allocation is
counted before it is made.

A room is in force for some seconds. A successor finds the rooms in the pages and goes on. Without one, programs try
without an arbiter when that time is over.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from egpu.adapters.slices.asking import set_room
from egpu.adapters.slices.overstays import Overstay, Overstays
from egpu.adapters.slices.pages import USAGE_SIZE, Parking, UsageReader, read_policy, usage_problem
from egpu.adapters.slices.reaping import reap
from egpu.adapters.slices.rows import Memory, memory_of
from egpu.adapters.slices.usage import Usage
from egpu.core.arbiter import Decision, Park, Tenant, Turn, decide
from egpu.core.overruns import Lasting
from egpu.core.thrashing import Contention
from egpu_base.errors import CorruptData, ElasticGPUError

COPY_BYTES_PER_SECOND: Final = 10e9
"""Between card and ordinary memory of the host. A smaller figure makes turns longer. It is not measured, because a slow
program would make the turns of all slices longer."""
TERM_SECONDS: Final = 10.0
"""A room is in force for so long without an arbiter. An agent is restarted within that time."""
HOLD_SECONDS: Final = 2.0
"""Calls of a busy program are held for at most so long to park it."""
ASKED_SECONDS: Final = 1.0
"""A program that waits says so more often than this."""
BUSY_SECONDS: Final = 0.05
CALM_SECONDS: Final = 0.2
NONE_SECONDS: Final = 2.0
"""Between two looks: while a slice waits or leaves, while none does, and while there are none."""
UNSEEN_SECONDS: Final = 2.0
"""Bytes that a slice counts, and the driver has not seen for so long, are not on the card."""
UNSEEN_BYTES: Final = 64 << 20
"""Fewer are no lie: both figures are rounded."""
SEEN_SECONDS: Final = 1.0
"""Bytes that the driver sees for so long are on the card, whatever the slice says. Its last figure alone may be older
than the last parking."""
WHOLE_SECONDS: Final = 1.0
"""Between two readings of all processes while no slice waits."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class SharedSlice:
    """A slice whose room on the card others may use. `floor_bytes` are always its own. `patience_seconds`: how long it
    may keep the rest from others that wait; 0: without end."""

    key: Hashable
    policy: Path
    usage: Path
    limit_bytes: int
    floor_bytes: int
    idle_seconds: float
    priority: int = 0
    stays: bool = False
    patience_seconds: float = 0.0


@dataclass(frozen=True)
class SharedCard:
    """A card, and its slices that share room. `budget_bytes`: the card without what other slices are promised."""

    budget_bytes: int
    slices: Sequence[SharedSlice]


def first_room(room_bytes: int) -> Parking:
    """Return the terms of a new slice: its own room, until the arbiter sees it."""
    return Parking(room_bytes=room_bytes, room_until_ns=time.monotonic_ns() + int(TERM_SECONDS * 1e9))


@dataclass
class Totals:
    """What happened so far: by slice, and by the card's UUID."""

    parked_seconds: dict[Hashable, float] = field(default_factory=dict[Hashable, float])
    overstayed_seconds: Mapping[Hashable, float] = field(default_factory=dict[Hashable, float])
    contended_seconds: dict[str, float] = field(default_factory=dict[str, float])
    parks: Counter[str] = field(default_factory=Counter[str])
    contention: dict[str, Contention] = field(default_factory=dict[str, Contention])

    @property
    def thrashing(self) -> frozenset[str]:
        """Return the UUIDs of cards whose busy slices wait for each other most of the time."""
        return frozenset(uuid for uuid, one in list(self.contention.items()) if one.thrashes)


@dataclass(frozen=True)
class _Look:
    """What a slice says at one moment."""

    one: SharedSlice
    parking: Parking
    tenant: Tenant


class Rooms:
    """The arbiter of the cards of one node. `cards` returns those with slices that share room, by UUID."""

    def __init__(
        self,
        cards: Callable[[], Mapping[str, SharedCard]],
        *,
        driver_bytes: Callable[[Hashable, str], int | None] = lambda key, uuid: None,
        clock: Callable[[], float] = time.monotonic,
        told: Callable[[Hashable, Park], None] = lambda key, park: None,
        overstays: Callable[[Overstay], None] = lambda overstay: None,
    ) -> None:
        """`driver_bytes`: the driver's figure for a slice on a card; None for none. `told` is called for each slice
        that is asked to park for another, `overstays` at each look for each that does not leave."""
        self._cards = cards
        self._driver_bytes = driver_bytes
        self._unseen: dict[Hashable, Lasting] = {}
        self._seen: dict[Hashable, Lasting] = {}
        self._told = told
        self._overstays = Overstays(overstays)
        self._clock = clock
        self._turns: dict[str, Mapping[Hashable, Turn]] = {}
        self._asked: dict[Hashable, int] = {}
        """The number of the last request to park, by slice."""
        self._whole_at: dict[str, float] = {}
        self._reaped_at: dict[Hashable, float] = {}
        self.totals = Totals()

    def step(self) -> float:
        """Look at every card once. Returns the seconds until the next look."""
        cards = self._cards()
        self._forget(cards)
        busy = [self._step(uuid, card) for uuid, card in cards.items()]
        return BUSY_SECONDS if any(busy) else CALM_SECONDS if busy else NONE_SECONDS

    def _step(self, uuid: str, card: SharedCard) -> bool:
        """Return whether a slice of the card waits or leaves."""
        now = self._clock()
        turns = self._turns.get(uuid, {})
        leaves = any(turn.leaves_since is not None for turn in turns.values())
        waits = any(self._asks(UsageReader(one.usage, devices=1).read_totals(), now) for one in card.slices)
        before = self._whole_at.get(uuid, now)
        if not (waits or leaves) and uuid in self._turns and now - before < WHOLE_SECONDS:
            return False
        self._whole_at[uuid] = now
        looks = [look for one in card.slices if (look := self._look(one, uuid, now)) is not None]
        tenants = [look.tenant for look in looks]
        decision = decide(tenants, turns, budget_bytes=card.budget_bytes, bandwidth=COPY_BYTES_PER_SECOND, now=now)
        self._turns[uuid] = decision.turns
        for look in looks:
            self._carry_out(uuid, look, decision, now)
        self._count(uuid, tenants, decision, now - before)
        patience = {one.key: one.patience_seconds for one in card.slices}
        self._overstays.see(uuid, tenants, decision.turns, patience, now=now, elapsed=now - before)
        self.totals.overstayed_seconds = self._overstays.seconds
        return waits or leaves or bool(decision.parks)

    @staticmethod
    def _asks(usage: Usage, now: float) -> bool:
        return bool(usage.devices) and -ASKED_SECONDS < now - usage.devices[0].room_asked_ns / 1e9 < ASKED_SECONDS

    def _look(self, one: SharedSlice, uuid: str, now: float) -> _Look | None:
        try:
            if now - self._reaped_at.get(one.key, -WHOLE_SECONDS) >= WHOLE_SECONDS:
                self._reaped_at[one.key] = now
                reap(one.usage)  # a program that was killed has no room
            policy = read_policy(one.policy)
        except (OSError, CorruptData) as error:
            log.info("slice not looked at", slice=str(one.key), reason=str(error))
            return None
        reader = UsageReader(one.usage)
        content = reader.content(USAGE_SIZE)
        # Not the totals: they may still have memory of ended processes.
        if isinstance(content, str) or usage_problem(content):
            said, asks = Memory(counted_bytes=one.limit_bytes), False
        else:
            said, asks = memory_of(content), self._asks(reader.read_totals(), now)
        parking = policy.parking or Parking()
        request = self._asked.get(one.key)
        on_card = min(one.limit_bytes, said.counted_bytes - said.away_bytes + policy.devices[0].overhead_bytes)
        unseen, seen = self._by_driver(one, uuid, on_card, now)
        on_card = min(one.limit_bytes, max(on_card - unseen, seen))
        tenant = Tenant(
            name=one.key,
            limit_bytes=one.limit_bytes,
            floor_bytes=one.floor_bytes,
            on_card_bytes=on_card,
            movable_bytes=min(said.movable_bytes, on_card),
            away_bytes=min(said.away_bytes + unseen, one.limit_bytes),
            room_bytes=min(parking.room_bytes, one.limit_bytes) if parking.is_shared else one.floor_bytes,
            asks=asks,
            active_at=min(now, said.active_ns / 1e9),
            idle_seconds=one.idle_seconds,
            priority=one.priority,
            stays=one.stays,
            answered=request is None or said.answered <= {request},
        )
        return _Look(one, parking, tenant)

    def _by_driver(self, one: SharedSlice, uuid: str, on_card: int, now: float) -> tuple[int, int]:
        """Return how much of what the slice has on the card, by its own word, the driver does not see, and how much the
        driver sees, whatever the slice says."""
        seen = self._driver_bytes(one.key, uuid)
        excess = on_card - (on_card if seen is None else seen)
        unseen = self._unseen.setdefault(one.key, Lasting(UNSEEN_SECONDS)).see(excess, now=now)
        least = self._seen.setdefault(one.key, Lasting(SEEN_SECONDS)).see(seen or 0, now=now)
        return (unseen if unseen >= UNSEEN_BYTES else 0), least

    def _carry_out(self, uuid: str, look: _Look, decision: Decision, now: float) -> None:
        key, parking = look.one.key, look.parking
        room = decision.rooms.get(key, look.tenant.room_bytes)
        lasts, park = parking.room_until_ns / 1e9 - now, decision.parks.get(key)
        if room == parking.room_bytes and park is None and lasts > TERM_SECONDS / 2:
            return
        hold_ns = None if park is None else int(HOLD_SECONDS * 1e9) * park.holds
        until_ns = int((now + TERM_SECONDS) * 1e9)
        try:
            request = set_room(look.one.policy, room_bytes=room, until_ns=until_ns, park_hold_ns=hold_ns)
        except (OSError, ElasticGPUError) as error:
            log.warning("room of a slice not written", slice=str(key), reason=str(error))
            return
        if park is not None:
            self._asked[key] = request
            self.totals.parks[uuid] += 1
            log.info("slice asked to park for another", slice=str(key), other=str(park.for_slice), why=park.why.value)
            self._told(key, park)

    def _count(self, uuid: str, tenants: Sequence[Tenant], decision: Decision, elapsed: float) -> None:
        parked, contended = self.totals.parked_seconds, self.totals.contended_seconds
        for one in tenants:
            if one.away_bytes:
                parked[one.name] = parked.get(one.name, 0.0) + elapsed
        contended[uuid] = contended.get(uuid, 0.0) + elapsed * decision.contended
        known = self.totals.contention.get(uuid, Contention())
        self.totals.contention[uuid] = known.after(elapsed, contended=decision.contended)

    def _forget(self, cards: Mapping[str, SharedCard]) -> None:
        self._turns = {uuid: turns for uuid, turns in self._turns.items() if uuid in cards}
        self._whole_at = {uuid: at for uuid, at in self._whole_at.items() if uuid in cards}
        for uuid in self.totals.contention.keys() - cards.keys():
            del self.totals.contention[uuid]
        kept = {one.key for card in cards.values() for one in card.slices}
        self._overstays.forget(cards, kept)
        for of_slice in (self._asked, self._reaped_at, self._unseen, self._seen, self.totals.parked_seconds):
            for gone in of_slice.keys() - kept:
                del of_slice[gone]
